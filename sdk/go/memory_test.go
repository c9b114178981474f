package kvxfer

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// asDaemon takes a descriptor as the daemon does.
func asDaemon(t *testing.T, m *memory) *hostmem.Mapping {
	t.Helper()
	r, passed, fe := m.registration("kv")
	require.Nil(t, fe)
	require.NoError(t, r.Validate())
	require.Equal(t, wire.RegionMemfd, r.Kind)
	daemon, err := hostmem.MapAt(passed, r.Name, r.Offset, r.Size)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, daemon.Close()) })
	return daemon
}

// readBack reads the daemon's view of a memory by its file, so that no mapping is shared with the caller's.
func readBack(t *testing.T, d *hostmem.Mapping, n int) []byte {
	t.Helper()
	out := make([]byte, n)
	got, err := unix.Pread(d.Memory().FD, out, int64(d.Memory().Addr))
	require.NoError(t, err)
	require.Equal(t, n, got)
	return out
}

func openFDs(t *testing.T) int {
	t.Helper()
	found, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(found)
}

func mappedTimes(t *testing.T, name string) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(raw), name)
}

func TestAllocatedMemoryIsTheDaemonsToo(t *testing.T) {
	const size = 3*4096 + 17
	fds := openFDs(t)
	m, err := allocateMemory("allocate_cache", "allocated", size)
	require.NoError(t, err)
	require.Len(t, m.bytes(), size)
	assert.Equal(t, size, cap(m.bytes()))
	assert.Equal(t, guaranteeFull, m.guarantee)
	assert.Len(t, m.id, 32)
	other, err := allocateMemory("allocate_cache", "allocated", 1)
	require.NoError(t, err)
	assert.NotEqual(t, m.id, other.id)
	require.NoError(t, other.close())

	daemon := asDaemon(t, m)
	copy(m.bytes(), "mine")
	assert.Equal(t, "mine", string(readBack(t, daemon, 4)))
	_, err = unix.Pwrite(daemon.Memory().FD, []byte("yours"), 0)
	require.NoError(t, err)
	assert.Equal(t, "yours", string(m.bytes()[:5]))

	require.NoError(t, m.close())
	require.NoError(t, m.close())
	assert.Nil(t, m.bytes())
	_, _, fe := m.registration("kv")
	require.NotNil(t, fe)
	assert.Equal(t, fault.Closed, fe.Code)
	assert.False(t, m.giveUp())
	assert.Equal(t, "yours", string(readBack(t, daemon, 5)), "the daemon keeps what it has mapped")
	require.NoError(t, daemon.Close())
	assert.Equal(t, fds, openFDs(t))
	assert.Zero(t, mappedTimes(t, "kvxfer:allocated"))
}

// TestDescriptorOnItsWayIsNobodyElses: what travels to the daemon is the memory even where it is given back meanwhile and its
// number becomes another file's.
func TestDescriptorOnItsWayIsNobodyElses(t *testing.T) {
	m, err := allocateMemory("allocate_cache", "travels", 4096)
	require.NoError(t, err)
	copy(m.bytes(), "mine")
	_, passed, fe := m.registration("kv")
	require.Nil(t, fe)
	defer func() { _ = unix.Close(passed) }()
	own := m.fd
	require.NoError(t, m.close())
	other, err := os.Open("/dev/zero")
	require.NoError(t, err)
	defer other.Close()
	assert.NotEqual(t, own, passed)
	got := make([]byte, 4)
	_, err = unix.Pread(passed, got, 0)
	require.NoError(t, err)
	assert.Equal(t, "mine", string(got))
}

func TestHugeSizesAreRefusedFirst(t *testing.T) {
	fds := openFDs(t)
	for op, field := range map[string]string{"allocate_cache": "num_blocks", "allocate_region": "size"} {
		_, err := allocateMemory(op, "huge", 1<<60)
		require.ErrorIs(t, err, ErrResourceExhausted)
		assert.Equal(t, field, err.(*Error).Field)
		assert.ErrorContains(t, err, "1152921504606846976 bytes are needed, ")
	}
	assert.Equal(t, fds, openFDs(t))
}

func TestAvailableMemory(t *testing.T) {
	n, ok := availableIn("MemTotal: 9 kB\nMemAvailable:     100 kB\nSwapFree:   3 kB\n")
	assert.True(t, ok)
	assert.Equal(t, uint64(103<<10), n)
	for _, bad := range []string{"", "MemAvailable: 1 kB\n", "MemAvailable: x kB\nSwapFree: 1 kB\n"} {
		_, ok := availableIn(bad)
		assert.False(t, ok, bad)
	}
}

func FuzzMeminfo(f *testing.F) {
	f.Add("MemAvailable:     100 kB\nSwapFree:   3 kB\n")
	f.Fuzz(func(t *testing.T, s string) {
		if n, ok := availableIn(s); !ok {
			require.True(t, n < 1<<63)
		}
	})
}
