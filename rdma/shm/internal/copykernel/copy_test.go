package copykernel

import (
	"errors"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func newRand(t testing.TB) *rand.Rand {
	s := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KVXFER_SEED"), 10, 64); err == nil {
		s = v
	}
	t.Logf("seed %d", s)
	return rand.New(rand.NewPCG(s, 3))
}

// object is a memfd mapped twice: as a client has it and as a daemon has it.
type object struct {
	fd  int
	mem []byte
}

func newObject(t testing.TB, size, flags int) *object {
	t.Helper()
	o := &object{}
	var err error
	o.fd, err = unix.MemfdCreate("copykernel", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(o.fd, int64(size)))
	o.mem, err = unix.Mmap(o.fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	require.NoError(t, err)
	t.Cleanup(func() {
		assert.NoError(t, unix.Munmap(o.mem))
		assert.NoError(t, unix.Close(o.fd))
	})
	return o
}

func (o *object) at(off int) uintptr { return uintptr(unsafe.Pointer(&o.mem[off])) }

func fill(b []byte, rng *rand.Rand) {
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
}

// TestCopyIsCopy compares whole mappings with what the language's own copy makes of them.
func TestCopyIsCopy(t *testing.T) {
	rng := newRand(t)
	const size = 1 << 20
	dst, src := newObject(t, size, 0), newObject(t, size, 0)
	fill(src.mem, rng)
	want := make([]byte, size)
	sizes := []int{0, 1, 31, 32, 33, 63, 64, 255, 256, streamMin - 1, streamMin, streamMin + 1, streamMin + 31, streamMin + 255, 4096, 65536}
	for _, stream := range []bool{false, true} {
		for round := range 300 {
			var steps []Step
			for range 1 + rng.IntN(8) {
				n := sizes[rng.IntN(len(sizes))] + rng.IntN(300)
				d, s := rng.IntN(size-n), rng.IntN(size-n)
				steps = append(steps, Step{dst.at(d), src.at(s), uintptr(n)})
				copy(want[d:d+n], src.mem[s:s+n])
			}
			require.NoError(t, Copy(steps, stream))
			require.Equal(t, want, dst.mem, "round %d, streaming %v", round, stream)
		}
	}
}

func FuzzCopy(f *testing.F) {
	f.Add(uint16(0), uint16(0), uint32(0), true)
	f.Add(uint16(1), uint16(33), uint32(streamMin), true)
	f.Add(uint16(31), uint16(7), uint32(70000), false)
	const size = 1 << 17
	f.Fuzz(func(t *testing.T, d, s uint16, n uint32, stream bool) {
		dst, src := newObject(t, size, 0), newObject(t, size, 0)
		fill(src.mem, rand.New(rand.NewPCG(uint64(d), uint64(n))))
		l := int(n) % (size - 65535)
		want := make([]byte, size)
		copy(want[int(d):int(d)+l], src.mem[int(s):int(s)+l])
		require.NoError(t, Copy([]Step{{dst.at(int(d)), src.at(int(s)), uintptr(l)}}, stream))
		require.Equal(t, want, dst.mem)
	})
}

func TestPunchedHole(t *testing.T) {
	const size = 1 << 20
	dst, src := newObject(t, size, 0), newObject(t, size, 0)
	for i := range src.mem {
		src.mem[i], dst.mem[i] = 7, 9
	}
	for _, o := range []*object{dst, src} {
		_, err := unix.FcntlInt(uintptr(o.fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
		require.NoError(t, err)
		require.NoError(t, unix.Fallocate(o.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 8192, 65536), "the seals allow it")
	}
	defer Guard(Guard(true))
	for _, stream := range []bool{false, true} {
		require.NoError(t, Copy([]Step{{dst.at(0), src.at(0), size}}, stream))
		require.Equal(t, src.mem, dst.mem)
		require.Zero(t, dst.mem[8192])
	}
}

// faulting copies and requires a fault of the side in [from, to) of its object.
func faulting(t *testing.T, steps []Step, source bool, from, to uintptr) {
	t.Helper()
	defer Guard(Guard(true))
	for _, stream := range []bool{false, true} {
		err := Copy(steps, stream)
		var f *Fault
		require.True(t, errors.As(err, &f), "streaming %v: %v", stream, err)
		assert.Equal(t, source, f.Source)
		assert.True(t, f.Addr >= from && f.Addr < to, "%#x is outside [%#x, %#x)", f.Addr, from, to)
		assert.Contains(t, f.Error(), map[bool]string{true: "source", false: "destination"}[source])
	}
}

// TestTruncatedInMidCopy: a memfd without seals loses its end; the step that meets the end faults, those before are done.
func TestTruncatedInMidCopy(t *testing.T) {
	const size, left = 1 << 20, 512 << 10
	for _, source := range []bool{true, false} {
		dst, src := newObject(t, size, 0), newObject(t, size, 0)
		for i := range src.mem {
			src.mem[i] = 7
		}
		cut := dst
		if source {
			cut = src
		}
		require.NoError(t, unix.Ftruncate(cut.fd, left))
		steps := []Step{{dst.at(0), src.at(0), 4096}, {dst.at(left - 8192), src.at(left - 8192), 100000}, {dst.at(8192), src.at(8192), 4096}}
		faulting(t, steps, source, cut.at(left-1)+1, cut.at(0)+size)
		assert.Equal(t, byte(7), dst.mem[4095], "the step before the fault")
		assert.Zero(t, dst.mem[8192], "the step behind it")
	}
}

func TestProtectedPages(t *testing.T) {
	const size = 1 << 20
	for _, source := range []bool{true, false} {
		dst, src := newObject(t, size, 0), newObject(t, size, 0)
		shut := dst
		if source {
			shut = src
		}
		require.NoError(t, unix.Mprotect(shut.mem[65536:131072], unix.PROT_NONE))
		faulting(t, []Step{{dst.at(0), src.at(0), size}}, source, shut.at(65536), shut.at(131072))
		require.NoError(t, unix.Mprotect(shut.mem[65536:131072], unix.PROT_READ|unix.PROT_WRITE))
	}
}

// TestHugePagesAreUsedUp: a memfd of huge pages that nobody reserved and none of which are left.
func TestHugePagesAreUsedUp(t *testing.T) {
	const path, page = "/proc/sys/vm/nr_hugepages", 2 << 20
	before, err := os.ReadFile(path)
	if err != nil {
		t.Skip("the kernel has no huge pages: ", err)
	}
	had, err := strconv.Atoi(strings.TrimSpace(string(before)))
	require.NoError(t, err)
	if b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages"); err != nil || strings.TrimSpace(string(b)) != "0" {
		t.Skip("huge pages of 2 MiB cannot be used up here: there are none, or the kernel may add some")
	}
	if os.WriteFile(path, []byte(strconv.Itoa(had+1)), 0o644) != nil {
		t.Skip("no huge page can be reserved: only root may")
	}
	t.Cleanup(func() { assert.NoError(t, os.WriteFile(path, before, 0o644)) })
	free := func() int {
		b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
		require.NoError(t, err)
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		require.NoError(t, err)
		return n
	}
	n := free()
	if n == 0 {
		t.Skip("the kernel found no huge page to reserve")
	}
	huge, plain := newObject(t, (n+1)*page, unix.MFD_HUGETLB|unix.MFD_HUGE_2MB), newObject(t, page, 0)
	for i := range n {
		huge.mem[i*page] = 1
	}
	require.Zero(t, free())
	faulting(t, []Step{{huge.at(n*page + 5), plain.at(0), 10000}}, false, huge.at(n*page), huge.at(n*page)+page)
	faulting(t, []Step{{plain.at(0), huge.at(n*page + 5), 10000}}, true, huge.at(n*page), huge.at(n*page)+page)
}

// TestForeignPanics: only faults of the steps' memory become errors.
func TestForeignPanics(t *testing.T) {
	s := Step{Dst: 1 << 20, Src: 1 << 30, N: 4096}
	assert.Panics(t, func() { _ = fault("a string", &s) })
	assert.Panics(t, func() { _ = fault(addressed(5), &s) })
	assert.NotPanics(t, func() { _ = fault(addressed(1<<30), &s) })
}

type addressed uintptr

func (addressed) Error() string   { return "memory" }
func (addressed) RuntimeError()   {}
func (a addressed) Addr() uintptr { return uintptr(a) }

func TestCopyAllocatesNothing(t *testing.T) {
	dst, src := newObject(t, 1<<20, 0), newObject(t, 1<<20, 0)
	steps := []Step{{dst.at(0), src.at(0), 100}, {dst.at(4096), src.at(4096), 65536}}
	assert.Zero(t, testing.AllocsPerRun(100, func() { _ = Copy(steps, true) }))
}

// BenchmarkCopy moves 16 MiB between memfds in blocks. Many buffers are used in turn, so that neither side is in a cache.
func BenchmarkCopy(b *testing.B) {
	const total, spread = 16 << 20, 16
	dst, src := newObject(b, total*spread, 0), newObject(b, total*spread, 0)
	for i := 0; i < len(src.mem); i += 4096 {
		src.mem[i], dst.mem[i] = 1, 1
	}
	for _, block := range []int{4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		for _, stream := range []bool{false, true} {
			b.Run(strconv.Itoa(block>>10)+"KiB/"+map[bool]string{true: "stream", false: "plain"}[stream], func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(block))
				step := make([]Step, 1)
				off := 0
				for b.Loop() {
					step[0] = Step{dst.at(off), src.at(off), uintptr(block)}
					if err := Copy(step, stream); err != nil {
						b.Fatal(err)
					}
					if off += block; off == total*spread {
						off = 0
					}
				}
			})
		}
	}
}
