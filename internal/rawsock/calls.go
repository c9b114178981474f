//go:build !race

package rawsock

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

func send(fd uintptr, b []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
	return count(n, err)
}

func read(fd uintptr, p []byte) (int, syscall.Errno) {
	n, _, err := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), unix.MSG_DONTWAIT, 0, 0)
	return count(n, err)
}

func recvmsg(fd uintptr, p, oob []byte) (n, oobn, flags int, _ syscall.Errno) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	msg := unix.Msghdr{Iov: &iov, Iovlen: 1, Control: unsafe.SliceData(oob)}
	msg.SetControllen(len(oob))
	got, _, err := syscall.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	n, err = count(got, err)
	return n, int(msg.Controllen), int(msg.Flags), err
}

func count(n uintptr, err syscall.Errno) (int, syscall.Errno) {
	if err != 0 {
		return 0, err
	}
	return int(n), 0
}
