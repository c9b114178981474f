package tcp

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// iovec is struct iovec with the address as a number: a *byte would make the collector look at addresses of memory
// that its owner may have unmapped since. It follows that only memory outside the Go heap is ever named in one; the
// control buffers are mapped for that reason too (mapControl).
type iovec struct {
	base uintptr
	len  uint64
}

// iov names the bytes of b, which must be mapped memory.
func iov(b []byte) iovec {
	if len(b) == 0 {
		return iovec{}
	}
	return iovec{base: uintptr(unsafe.Pointer(unsafe.SliceData(b))), len: uint64(len(b))}
}

// readv and writev are one system call each. The descriptor does not block, so they last no longer than the kernel's copy of
// at most a frame, and the scheduler is not told: after 20 us it would give the processor's place to another thread, which
// this one would have to wait for behind each copy.
func readv(fd uintptr, v []iovec) (uint64, syscall.Errno) { return vectors(unix.SYS_READV, fd, v) }

func writev(fd uintptr, v []iovec) (uint64, syscall.Errno) { return vectors(unix.SYS_WRITEV, fd, v) }

func vectors(call, fd uintptr, v []iovec) (uint64, syscall.Errno) {
	n, _, e := unix.RawSyscall(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(v))), uintptr(len(v)))
	return moved(n, e)
}

// mapAnon maps n bytes of zeros outside the Go heap.
func mapAnon(n, prot int) ([]byte, error) {
	return unix.Mmap(-1, 0, n, prot, unix.MAP_PRIVATE|unix.MAP_ANON)
}

func mapControl(n int) ([]byte, error) { return mapAnon(n, unix.PROT_READ|unix.PROT_WRITE) }

// bufferLimit is the largest socket buffer that a plain setsockopt can get; 0 when it cannot be known.
func bufferLimit(name string) int {
	b, err := os.ReadFile("/proc/sys/net/core/" + name)
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return n
}

// setBuffers asks for socket buffers of n bytes and returns what the kernel says they are (it counts double). Where
// the kernel's limit is below n and the process may not pass it, the buffers are left alone: a set buffer stops the
// kernel from growing it, and what it grows to by itself is more than the limit.
func setBuffers(fd uintptr, n int) (send, receive int) {
	for _, b := range [...]struct {
		force, plain int
		limit        string
	}{{unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, "wmem_max"}, {unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, "rmem_max"}} {
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, b.force, n) != nil && bufferLimit(b.limit) >= n {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, b.plain, n)
		}
	}
	send, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
	receive, _ = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF)
	return send, receive
}

// orphanTimeout is how long the kernel keeps what a closed lane had not delivered.
const orphanTimeout = 5 * time.Second

// limitOrphan sets it. Without it a peer that is stopped would keep the socket's buffers alive in the kernel for a
// quarter of an hour.
func limitOrphan(fd int) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(orphanTimeout/time.Millisecond))
}
