package numa

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma"
)

func TestCount(t *testing.T) {
	for list, want := range map[string]int{"0\n": 1, "0-1\n": 2, "0-3,8,10-11": 7, "": 0, "x": 0, "1-0": 0, "0-": 0, "-1": 0, "0,,1": 0, "0-65535,0-65535": 0} {
		assert.Equal(t, want, count(list), "%q", list)
	}
}

func FuzzCount(f *testing.F) {
	f.Add("0-1,4")
	f.Fuzz(func(t *testing.T, s string) {
		if n := count(s); n < 0 || n > maxNodes {
			t.Fatalf("%q: %d nodes", s, n)
		}
	})
}

func TestMost(t *testing.T) {
	for _, x := range []struct {
		length uint64
		ask    func(off uint64) (int, bool)
		want   int // -1: unknown
	}{
		{1, func(uint64) (int, bool) { return 3, true }, 3},
		{1 << 30, func(off uint64) (int, bool) { return int(off / (1 << 29)), true }, 0},        // half and half
		{1 << 30, func(off uint64) (int, bool) { return int(off / (1 << 28)), off > 3<<28 }, 3}, // most is refused
		{1 << 30, func(uint64) (int, bool) { return 0, false }, -1},
		{0, func(uint64) (int, bool) { return 0, true }, -1},
	} {
		asked := 0
		got := most(x.length, func(off uint64) (int, bool) {
			asked++
			require.Less(t, off, x.length)
			return x.ask(off)
		})
		assert.LessOrEqual(t, asked, samples)
		if x.want < 0 {
			assert.Nil(t, got)
			continue
		}
		require.NotNil(t, got)
		assert.Equal(t, x.want, *got)
	}
}

func TestThisHost(t *testing.T) {
	if _, err := os.Stat(onlineFile); errors.Is(err, os.ErrNotExist) {
		t.Skip("this kernel has no NUMA")
	}
	require.Positive(t, Nodes())
	page, err := unix.Mmap(-1, 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(page)) }()
	base := unsafe.Pointer(&page[0])
	if node, ok := nodeAt(base); ok { // refused in some containers
		assert.Less(t, node, 1024)
	}
	_, ok := nodeAt(nil)
	assert.False(t, ok, "nothing is mapped there")
	assert.Nil(t, Of(rdma.Memory{Kind: rdma.MemoryProcess, Len: 1}))
	if of := Of(rdma.Memory{Kind: rdma.MemoryHost, Base: base, Len: 1 << 16}); Nodes() == 1 {
		assert.Nil(t, of)
	}
}
