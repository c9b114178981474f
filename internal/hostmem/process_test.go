package hostmem_test

import (
	"fmt"
	"os"
	"os/exec"
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

var _ xfer.Mapping = (*hostmem.Process)(nil)

// anon is anonymous memory of this process, and where it is.
func anon(t *testing.T, n int) ([]byte, uint64) {
	t.Helper()
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(b)) })
	return b, uint64(uintptr(unsafe.Pointer(&b[0])))
}

func openMem(t *testing.T, path string, flags int) int {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	return fd
}

func TestProcessReachesItsMemory(t *testing.T) {
	const size = 10000
	b, addr := anon(t, size)
	fd := openMem(t, "/proc/self/mem", unix.O_RDWR)
	p, err := hostmem.OpenProcess(fd, "kv", addr+3, size-3)
	require.NoError(t, err)
	m := p.Memory()
	assert.Equal(t, rdma.Memory{Kind: rdma.MemoryProcess, FD: fd, Addr: addr + 3, Len: size - 3, Name: "kv"}, m)
	n, err := unix.Pwrite(m.FD, []byte("placed"), int64(m.Addr))
	require.NoError(t, err)
	assert.Equal(t, 6, n)
	assert.Equal(t, "placed", string(b[3:9]))
	assert.True(t, open(fd))
	require.NoError(t, p.Close())
	require.NoError(t, p.Close(), "the second does nothing")
	assert.False(t, open(fd))
}

func TestProcessRefusals(t *testing.T) {
	const size = 8192
	_, addr := anon(t, size)
	mem := func(t *testing.T) int { return openMem(t, "/proc/self/mem", unix.O_RDWR) }
	for _, c := range []struct {
		name, field string
		addr, size  uint64
		fd          func(t *testing.T) int
	}{
		{"for reading only", "kind", addr, size, func(t *testing.T) int { return openMem(t, "/proc/self/mem", unix.O_RDONLY) }},
		{"for writing only", "kind", addr, size, func(t *testing.T) int { return openMem(t, "/proc/self/mem", unix.O_WRONLY) }},
		{"O_PATH", "kind", addr, size, func(t *testing.T) int { return openMem(t, "/proc/self/mem", unix.O_PATH) }},
		{"another file of /proc", "kind", addr, size, func(t *testing.T) int { return openMem(t, "/proc/self/clear_refs", unix.O_WRONLY) }},
		{"a directory of /proc", "kind", addr, size, func(t *testing.T) int { return openMem(t, "/proc/self", unix.O_RDONLY) }},
		{"a file called mem", "kind", addr, size, func(t *testing.T) int {
			return openMem(t, t.TempDir()+"/mem", unix.O_RDWR|unix.O_CREAT)
		}},
		{"a memfd", "kind", addr, size, func(t *testing.T) int { return memfd(t, good(size)) }},
		{"not a descriptor", "kind", addr, size, func(*testing.T) int { return -1 }},
		{"address 0", "addr", 0, size, mem},
		{"size 0", "addr", addr, 0, mem},
		{"beyond the file's offsets", "addr", 1<<62 + 1, size, mem},
		{"nothing is mapped there", "addr", 4096, 1, mem},
		{"the last byte is not mapped", "addr", addr, 1 << 46, mem},
		{"the end has a sign", "addr", 1 << 62, 1 << 62, mem},
	} {
		t.Run(c.name, func(t *testing.T) {
			fd := c.fd(t)
			p, err := hostmem.OpenProcess(fd, "kv", c.addr, c.size)
			require.Nil(t, p)
			require.ErrorIs(t, err, fault.ErrMemoryRejected)
			fe := fault.From("", err)
			assert.Equal(t, c.field, fe.Field)
			assert.Equal(t, "kv", fe.Region)
			assert.NotEmpty(t, fe.Detail)
			assert.False(t, open(fd), "the descriptor is closed")
		})
	}
}

func TestProcessIdentity(t *testing.T) {
	const size = 16384
	_, addr := anon(t, size)
	keeps := openMem(t, "/proc/self/mem", unix.O_RDWR) // a client's own copy, which it keeps
	defer unix.Close(keeps)
	object := func(path string, addr, size uint64) [2]uint64 {
		p, err := hostmem.OpenProcess(openMem(t, path, unix.O_RDWR), "kv", addr, size)
		require.NoError(t, err)
		defer p.Close()
		dev, ino := p.Object()
		return [2]uint64{dev, ino}
	}
	first := object("/proc/self/mem", addr, size)
	assert.Equal(t, first, object("/proc/self/mem", addr, size), "the same memory, handed over again")
	assert.NotEqual(t, first, object("/proc/self/mem", addr+1, size-1))
	assert.NotEqual(t, first, object("/proc/self/mem", addr, size-1))
	pid, at, end := child(t)
	defer end()
	assert.NotEqual(t, object("/proc/self/mem", addr, 4096), object(fmt.Sprintf("/proc/%d/mem", pid), at, 4096))
}

// child is another process, an address of its stack, and its end.
func child(t *testing.T) (pid int, stack uint64, end func()) {
	t.Helper()
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "[stack]") {
			from, _, _ := strings.Cut(line, "-")
			stack, err = strconv.ParseUint(from, 16, 64)
			require.NoError(t, err)
		}
	}
	require.NotZero(t, stack, "%s", maps)
	return c.Process.Pid, stack, func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		_ = in.Close()
	}
}

// TestProcessEnds: what was opened reaches nothing any more when its process is gone, whoever has its number then.
func TestProcessEnds(t *testing.T) {
	pid, at, end := child(t)
	path := fmt.Sprintf("/proc/%d/mem", pid)
	p, err := hostmem.OpenProcess(openMem(t, path, unix.O_RDWR), "kv", at, 64)
	if err != nil {
		end()
	}
	require.NoError(t, err)
	late := openMem(t, path, unix.O_RDWR)
	end()
	n, err := unix.Pwrite(p.Memory().FD, []byte("late"), int64(at))
	assert.Zero(t, n)
	assert.NoError(t, err, "the kernel's way to say that the address space has ended")
	require.NoError(t, p.Close())
	_, err = hostmem.OpenProcess(late, "kv", at, 64)
	require.ErrorIs(t, err, fault.ErrMemoryRejected)
	assert.Equal(t, "addr", fault.From("", err).Field)
}
