//go:build race

package rawsock

import (
	"errors"
	"syscall"
)

func send(fd uintptr, b []byte) (int, syscall.Errno) {
	n, err := syscall.Write(int(fd), b)
	return max(n, 0), errno(err)
}

func read(fd uintptr, p []byte) (int, syscall.Errno) {
	n, err := syscall.Read(int(fd), p)
	return max(n, 0), errno(err)
}

func recvmsg(fd uintptr, p, oob []byte) (n, oobn, flags int, _ syscall.Errno) {
	n, oobn, flags, _, err := syscall.Recvmsg(int(fd), p, oob, syscall.MSG_CMSG_CLOEXEC)
	return max(n, 0), oobn, flags, errno(err)
}

func errno(err error) syscall.Errno {
	var e syscall.Errno
	if err != nil && !errors.As(err, &e) {
		return syscall.EIO
	}
	return e
}
