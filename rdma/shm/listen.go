package shm

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

const (
	network    = "unixpacket" // keeps messages and their descriptors together
	socketName = "shm.sock"
)

// listen makes the socket, for its owner alone.
func (p *Provider) listen() (*net.UnixListener, error) {
	fail := func(err error) (*net.UnixListener, error) {
		if p.dir != "" {
			_ = os.RemoveAll(p.dir)
		}
		return nil, &fault.Error{Code: fault.ConfigInvalid, Op: "start", Field: "Path", Detail: "the socket for peers of this host cannot be made", Err: err}
	}
	p.path = p.opt.Path
	if len(p.path) > maxPath {
		dir, err := os.MkdirTemp("", "kvxfer-shm-") // 0700
		if err != nil {
			return fail(err)
		}
		p.dir, p.path = dir, filepath.Join(dir, socketName)
	} else if st, err := os.Lstat(p.path); err == nil && st.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(p.path) // a former daemon's: there is one on a state directory
	}
	ln, err := net.ListenUnix(network, &net.UnixAddr{Net: network, Name: p.path})
	if err != nil {
		return fail(err)
	}
	ln.SetUnlinkOnClose(false) // removeSocket does
	if err := os.Chmod(p.path, 0o600); err != nil {
		_ = ln.Close()
		return fail(err)
	}
	return ln, nil
}

func (p *Provider) removeSocket() {
	_ = os.Remove(p.path)
	if p.dir != "" {
		_ = os.Remove(p.dir)
	}
}

// accept takes connections until the door is closed. Other failures (no descriptors left) are waited out.
func (p *Provider) accept(ln *net.UnixListener) {
	var pause time.Duration
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			pause = 0
			if !p.door.enter(conn) {
				_ = conn.Close()
				continue
			}
			p.wg.Go(func() { p.serve(conn) })
			continue
		case p.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-p.ctx.Done():
			return
		}
	}
}

// serve hears a connection's hello.
func (p *Provider) serve(conn *net.UnixConn) {
	err := p.hear(conn)
	if err != nil {
		_ = conn.Close()
		p.opt.Logger.Debug("shm connection refused", "error", err)
	}
}

func (p *Provider) hear(conn *net.UnixConn) error {
	entered := true
	defer func() {
		if entered {
			p.door.leave(conn)
		}
	}()
	if err := trusted(conn); err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(p.opt.HelloTimeout))
	b, fd, err := readHello(conn, helloLen)
	if err != nil {
		return err
	}
	defer func() {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}()
	t, pages, err := p.admit(b, fd)
	if err != nil {
		_, _, _ = conn.WriteMsgUnix(helloAnswer(fault.CodeOf(err)), nil, nil)
		return err
	}
	_, _, err = conn.WriteMsgUnix(helloAnswer(0), unix.UnixRights(pages[0].fd), nil)
	_ = conn.SetDeadline(time.Time{})
	entered = false
	if !p.door.leave(conn) && err == nil {
		err = errClosed("hello")
	}
	return t.begin(conn, pages, err)
}

// admit checks a hello and reserves its session's only place. begin must follow.
func (p *Provider) admit(b []byte, fd int) (*target, [2]*page, error) {
	var pages [2]*page
	h, err := parseHello(b)
	if err != nil {
		return nil, pages, err
	}
	p.mu.Lock()
	t := p.targets[h.session]
	p.mu.Unlock()
	if t == nil {
		return nil, pages, fault.New(fault.NotFound, "hello", "session %d", h.session)
	}
	if !t.secret.equals(&h.secret) {
		return nil, pages, fault.New(fault.PermissionDenied, "hello", "wrong secret for session %d", h.session)
	}
	if pages[1], err = peersPage(fd, int(h.slots), windowSlots); err != nil {
		return nil, pages, err
	}
	if pages[0], err = newPage(windowSlots, int(h.slots)); err == nil {
		err = t.reserve()
	}
	if err != nil {
		pages[0].close()
		pages[1].close()
		return nil, pages, err
	}
	return t, pages, nil
}

// readHello reads one message of n bytes with one descriptor, -1 when there is none.
func readHello(conn *net.UnixConn, n int) (b []byte, fd int, err error) {
	b, oob := make([]byte, n+1), make([]byte, unix.CmsgSpace(4*4))
	k, l, flags, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, -1, err
	}
	fds, err := descriptors(oob[:l])
	if err == nil && (k != n || flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 || len(fds) > 1) {
		err = violation("a hello of %d bytes with %d descriptors", k, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, -1, err
	}
	fd = -1
	if len(fds) == 1 {
		fd = fds[0]
	}
	return b[:n], fd, nil
}

// trusted refuses processes of other users: whoever gets memory here can read all of it.
func trusted(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fault.Wrap(fault.Internal, "hello", err)
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil {
		err = cerr
	}
	if err != nil {
		return fault.Wrap(fault.Internal, "hello", err)
	}
	return trustedUser(int(cred.Uid), os.Geteuid())
}

func trustedUser(uid, own int) error {
	if uid != own && uid != 0 {
		return fault.New(fault.PermissionDenied, "hello", "the process on the other side is of user %d, allowed are %d and root", uid, own)
	}
	return nil
}

// dial connects to the target's socket; every failure means that the two are not on one host, or not allowed to be.
func (p *Provider) dial(ctx context.Context, path string) (*net.UnixConn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, path)
	if err != nil {
		return nil, err
	}
	c := conn.(*net.UnixConn)
	if err := trusted(c); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}
