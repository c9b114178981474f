package kvxfer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/pidfd"
)

// hint is what an error says to somebody who has no daemon.
const hint = "start one with `kvxfer serve`, or name its socket by the argument or KVXFER_SOCKET"

// maxSocketPath is what a Unix socket's address has room for, in bytes.
const maxSocketPath = 107

// dialSocket connects to the socket at path until ctx ends. It uses the socket calls themselves, because package net
// resolves names through cgo where it can, and a client has no names to resolve.
func dialSocket(ctx context.Context, path string) (*os.File, *fault.Error) {
	const op = "connect"
	if len(path) < 1 || len(path) > maxSocketPath {
		return nil, fault.Invalid(op, "socket", "%q has %d bytes, allowed 1..%d", path, len(path), maxSocketPath)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fault.New(fault.ResourceExhausted, op, "no socket: %v", err)
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: path})
		if err != unix.EAGAIN && err != unix.EINTR {
			break
		}
		// The daemon's backlog is full: it does not accept. The kernel tells nobody when that changes.
		select {
		case <-ctx.Done():
			_ = unix.Close(fd)
			return nil, &fault.Error{Code: codeOfContext(ctx, fault.DaemonUnavailable), Op: op, Err: ctx.Err(),
				Detail: fmt.Sprintf("the daemon at %s accepts no connection (is it stopped?)", path)}
		case <-time.After(10 * time.Millisecond):
		}
	}
	switch {
	case err == nil:
		return os.NewFile(uintptr(fd), "kvxfer"), nil // non-blocking: the runtime's poller waits for it
	case errors.Is(err, unix.EACCES):
		_ = unix.Close(fd)
		return nil, &fault.Error{Code: fault.PermissionDenied, Op: op, Field: "socket", Detail: "no right to open " + path, Err: err}
	default:
		_ = unix.Close(fd)
		return nil, &fault.Error{Code: fault.DaemonUnavailable, Op: op, Detail: fmt.Sprintf("no daemon at %s; %s", path, hint), Err: err}
	}
}

// codeOfContext tells a caller who gave up from a deadline that has passed; late is the code for that.
func codeOfContext(ctx context.Context, late fault.Code) fault.Code {
	if errors.Is(ctx.Err(), context.Canceled) {
		return fault.Cancelled
	}
	return late
}

// openDaemon returns a handle of the daemon's process, nil where its exit cannot be seen: the kernel does not tell, or
// the daemon runs inside this process, which does not outlive itself.
func openDaemon(sock *os.File) *pidfd.Handle {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil
	}
	pid := 0
	if err := raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	}); err != nil || pid == os.Getpid() {
		return nil
	}
	h, err := pidfd.OfPeer(syscall.Conn(sock), pid)
	if err != nil {
		return nil
	}
	return h
}
