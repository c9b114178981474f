package hostmem_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

var _ xfer.Mapping = (*hostmem.Mapping)(nil)

const (
	seals    = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	objectID = "kvxfer-hostmem-test"
)

type spec struct {
	size    int64
	alloc   int64
	seals   int
	flags   int
	noSeals bool
}

func memfd(t *testing.T, s spec) int {
	t.Helper()
	flags := unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING | s.flags
	if s.noSeals {
		flags &^= unix.MFD_ALLOW_SEALING
	}
	fd, err := unix.MemfdCreate(objectID, flags)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, s.size))
	if s.alloc > 0 {
		require.NoError(t, unix.Fallocate(fd, 0, 0, s.alloc))
	}
	if s.seals != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, s.seals)
		require.NoError(t, err)
	}
	return fd
}

func good(size int64) spec { return spec{size: size, alloc: size, seals: seals} }

func open(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	return err == nil
}

// mappings counts this process's mappings of this test's memfds.
func mappings(t *testing.T) int {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(raw), objectID)
}

func view(m *hostmem.Mapping) []byte {
	return unsafe.Slice((*byte)(m.Memory().Base), m.Memory().Len)
}

func TestRefusals(t *testing.T) {
	const size = 64 << 10
	tmpfs := func(t *testing.T) string {
		var fs unix.Statfs_t
		require.NoError(t, unix.Statfs("/dev/shm", &fs), "/dev/shm is needed")
		return filepath.Join("/dev/shm", objectID)
	}
	for _, c := range []struct {
		name  string
		field string
		size  uint64
		fd    func(t *testing.T) int
	}{
		{"no seals at all", "seals", size, func(t *testing.T) int { return memfd(t, spec{size: size, alloc: size}) }},
		{"sealing not allowed", "seals", size, func(t *testing.T) int { return memfd(t, spec{size: size, alloc: size, noSeals: true}) }},
		{"SHRINK missing", "seals", size, func(t *testing.T) int {
			return memfd(t, spec{size: size, alloc: size, seals: seals &^ unix.F_SEAL_SHRINK})
		}},
		{"GROW missing", "seals", size, func(t *testing.T) int {
			return memfd(t, spec{size: size, alloc: size, seals: seals &^ unix.F_SEAL_GROW})
		}},
		{"SEAL missing", "seals", size, func(t *testing.T) int {
			return memfd(t, spec{size: size, alloc: size, seals: seals &^ unix.F_SEAL_SEAL})
		}},
		{"WRITE sealed", "seals", size, func(t *testing.T) int {
			return memfd(t, spec{size: size, alloc: size, seals: seals | unix.F_SEAL_WRITE})
		}},
		{"FUTURE_WRITE sealed", "seals", size, func(t *testing.T) int {
			return memfd(t, spec{size: size, alloc: size, seals: seals | unix.F_SEAL_FUTURE_WRITE})
		}},
		{"size 0", "size", 0, func(t *testing.T) int { return memfd(t, good(size)) }},
		{"declared too large", "size", size + 1, func(t *testing.T) int { return memfd(t, good(size)) }},
		{"declared too small", "size", size - 1, func(t *testing.T) int { return memfd(t, good(size)) }},
		{"declared absurdly large", "size", 1 << 62, func(t *testing.T) int { return memfd(t, good(size)) }},
		{"empty object", "size", 0, func(t *testing.T) int { return memfd(t, spec{seals: seals}) }},
		{"sparse", "allocation", size, func(t *testing.T) int { return memfd(t, spec{size: size, seals: seals}) }},
		{"half sparse", "allocation", size, func(t *testing.T) int { return memfd(t, spec{size: size, alloc: size / 2, seals: seals}) }},
		{"pipe", "kind", size, func(t *testing.T) int {
			var p [2]int
			require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
			require.NoError(t, unix.Close(p[1]))
			return p[0]
		}},
		{"directory", "kind", size, func(t *testing.T) int {
			fd, err := unix.Open(t.TempDir(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			require.NoError(t, err)
			return fd
		}},
		{"file on another file system", "kind", size, func(t *testing.T) int {
			fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
			require.NoError(t, err)
			return fd
		}},
		{"file on tmpfs that is no memfd", "seals", size, func(t *testing.T) int {
			name := tmpfs(t)
			fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC, 0o600)
			require.NoError(t, err)
			require.NoError(t, os.Remove(name))
			require.NoError(t, unix.Fallocate(fd, 0, 0, size))
			return fd
		}},
		{"open for reading only", "kind", size, func(t *testing.T) int {
			fd := memfd(t, good(size))
			ro, err := unix.Open("/proc/self/fd/"+strconv.Itoa(fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			require.NoError(t, err)
			require.NoError(t, unix.Close(fd))
			return ro
		}},
		{"not a descriptor", "kind", size, func(*testing.T) int { return -1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := mappings(t)
			fd := c.fd(t)
			m, err := hostmem.Map(fd, "kv", c.size)
			require.Nil(t, m)
			require.ErrorIs(t, err, fault.ErrMemoryRejected)
			fe := fault.From("", err)
			assert.Equal(t, c.field, fe.Field)
			assert.Equal(t, "kv", fe.Region)
			assert.NotEmpty(t, fe.Detail)
			assert.False(t, open(fd), "the descriptor is closed")
			assert.Equal(t, before, mappings(t))
		})
	}
}

func TestWritesAreSeenBothWays(t *testing.T) {
	const size = 3*4096 + 17 // the last page is not whole
	fd := memfd(t, good(size))
	mine, err := unix.Dup(fd)
	require.NoError(t, err)
	defer unix.Close(mine)
	m, err := hostmem.Map(fd, "kv", size)
	require.NoError(t, err)
	defer m.Close()

	assert.Equal(t, rdma.MemoryHost, m.Memory().Kind)
	assert.Equal(t, uint64(size), m.Memory().Len)
	assert.Equal(t, "kv", m.Memory().Name)
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(mine, &st))
	dev, ino := m.Object()
	assert.Equal(t, [2]uint64{uint64(st.Dev), st.Ino}, [2]uint64{dev, ino})

	_, err = unix.Pwrite(mine, []byte("client"), size-6)
	require.NoError(t, err)
	assert.Equal(t, "client", string(view(m)[size-6:]))
	copy(view(m)[4095:], "daemon")
	got := make([]byte, 6)
	_, err = unix.Pread(mine, got, 4095)
	require.NoError(t, err)
	assert.Equal(t, "daemon", string(got))
}

func TestMappingOutlivesTheDescriptor(t *testing.T) {
	const size = 1 << 20
	before := mappings(t)
	clients := memfd(t, good(size))
	fd, err := unix.Dup(clients)
	require.NoError(t, err)
	m, err := hostmem.Map(fd, "kv", size)
	require.NoError(t, err)
	require.NoError(t, unix.Close(clients))
	assert.Equal(t, fd, m.Memory().FD)
	assert.True(t, open(fd), "kept for providers until Close")
	assert.Equal(t, before+1, mappings(t))
	for i := range view(m) {
		view(m)[i] = byte(i)
	}
	require.NoError(t, m.Close())
	assert.False(t, open(fd))
	require.NoError(t, m.Close(), "the second does nothing")
	assert.Equal(t, before, mappings(t))
}

func TestTwoObjectsDiffer(t *testing.T) {
	a, err := hostmem.Map(memfd(t, good(4096)), "a", 4096)
	require.NoError(t, err)
	defer a.Close()
	b, err := hostmem.Map(memfd(t, good(4096)), "b", 4096)
	require.NoError(t, err)
	defer b.Close()
	_, ia := a.Object()
	_, ib := b.Object()
	assert.NotEqual(t, ia, ib)
}

func TestPunchedHole(t *testing.T) {
	const size = 16 * 4096
	fd := memfd(t, good(size))
	mine, err := unix.Dup(fd)
	require.NoError(t, err)
	defer unix.Close(mine)
	m, err := hostmem.Map(fd, "kv", size)
	require.NoError(t, err)
	defer m.Close()
	copy(view(m)[4096:], "before")
	require.NoError(t, unix.Fallocate(mine, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 8192))

	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC))
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	_, err = unix.Write(p[1], []byte("after!"))
	require.NoError(t, err)
	n, err := unix.Readv(p[0], [][]byte{view(m)[4096+100:][:6]})
	require.NoError(t, err)
	assert.Equal(t, 6, n)
	assert.Equal(t, "after!", string(view(m)[4096+100:][:6]))
	assert.Equal(t, bytes.Repeat([]byte{0}, 6), view(m)[4096:][:6], "the hole reads as zeroes")
}

func TestHugePages(t *testing.T) {
	const size = 2 << 20
	fd, err := unix.MemfdCreate(objectID, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err != nil {
		t.Skipf("this kernel has no huge pages of 2 MiB: %v", err)
	}
	require.NoError(t, unix.Ftruncate(fd, size))
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		require.NoError(t, unix.Close(fd))
		t.Skipf("no huge page is free on this machine: %v", err)
	}
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	m, err := hostmem.Map(fd, "kv", size)
	require.NoError(t, err)
	view(m)[size-1] = 1
	require.NoError(t, m.Close())
}
