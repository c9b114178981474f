package pidfd

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// ErrGone says that the process has exited and was reaped.
	ErrGone = errors.New("the process is gone")
	// ErrUnseen says that the process has no number in this pid namespace, so that no number names it.
	ErrUnseen = errors.New("the process is not seen from this pid namespace")
)

// Handle is one process.
type Handle struct {
	f *os.File // in the runtime's poller, so that waiting costs no thread
}

// Open returns a handle of the process that has this number now, or ErrGone, or ErrUnseen where the number is the
// kernel's "none" (0).
func Open(pid int) (*Handle, error) {
	if pid <= 0 {
		return nil, ErrUnseen
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	switch err {
	case nil:
		return wrap(fd)
	case unix.ESRCH:
		return nil, ErrGone
	}
	return nil, os.NewSyscallError("pidfd_open", err)
}

// OfPeer returns a handle of the process that connected the Unix socket conn, or ErrGone. The kernel hands it out by the
// socket, so that the process may live in any pid namespace. pid is its number by SO_PEERCRED, 0 where it has none here;
// it is used on kernels before 6.5 alone, where it might already be another process's, and where 0 is ErrUnseen.
func OfPeer(conn syscall.Conn, pid int) (*Handle, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var sockErr error
	if err := raw.Control(func(s uintptr) {
		fd, sockErr = unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	}); err != nil {
		return nil, err
	}
	switch sockErr {
	case nil:
		if err := unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(fd)
			return nil, os.NewSyscallError("fcntl", err)
		}
		return wrap(fd)
	case unix.ENOPROTOOPT:
		return Open(pid)
	case unix.ESRCH, unix.EINVAL, unix.ENODATA: // what kernels answer for a process that was reaped
		return nil, ErrGone
	}
	return nil, os.NewSyscallError("getsockopt SO_PEERPIDFD", sockErr)
}

func wrap(fd int) (*Handle, error) {
	return &Handle{f: os.NewFile(uintptr(fd), "pidfd")}, nil
}

// Exited reports whether the process has exited.
func (h *Handle) Exited() (bool, error) {
	raw, err := h.f.SyscallConn()
	if err != nil {
		return false, err
	}
	var done bool
	var pollErr error
	if err := raw.Control(func(fd uintptr) { done, pollErr = readable(fd) }); err != nil {
		return false, err
	}
	return done, pollErr
}

// Wait returns nil when the process has exited, or ctx's error. One goroutine waits at a time.
func (h *Handle) Wait(ctx context.Context) error {
	if err := h.f.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(ended); _ = h.f.SetReadDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() { // its deadline must not come into the next call's wait
			<-ended
		}
	}()
	raw, err := h.f.SyscallConn()
	if err != nil {
		return err
	}
	var pollErr error
	err = raw.Read(func(fd uintptr) bool {
		var done bool
		done, pollErr = readable(fd)
		return done || pollErr != nil
	})
	if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return errors.Join(err, pollErr)
}

func readable(fd uintptr) (bool, error) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, 0)
		if err == unix.EINTR {
			continue
		}
		return n > 0, os.NewSyscallError("poll", err)
	}
}

// Close releases the descriptor; a Wait in progress ends with an error.
func (h *Handle) Close() error { return h.f.Close() }
