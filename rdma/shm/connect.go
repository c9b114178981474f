package shm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Connect opens the target's socket, whose path is in the parameters, unless the target is this provider's own; addr is not looked at. Whatever keeps the two
// processes apart (no such path here, another user, another node's socket under that path) is PeerUnreachable.
func (p *Provider) Connect(ctx context.Context, id rdma.SessionID, _ string, raw []byte) (rdma.Initiator, error) {
	par, err := parseParams(raw)
	if err != nil {
		return nil, err
	}
	if !p.enter() {
		return nil, errClosed("connect")
	}
	defer p.wg.Done()
	p.mu.Lock()
	if _, taken := p.initiators[id]; taken {
		p.mu.Unlock()
		return nil, fault.Invalid("connect", "id", "session %d exists; want a number never used before", id)
	}
	p.initiators[id] = nil
	p.mu.Unlock()

	i, err := p.initiate(ctx, id, &par)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.initiators, id)
		return nil, err
	}
	p.initiators[id] = i
	return i, nil
}

func (i *initiator) dial(ctx context.Context, par *params) error {
	ctx, cancel := context.WithTimeout(ctx, i.p.opt.DialTimeout)
	defer cancel()
	defer context.AfterFunc(i.p.ctx, cancel)()
	err := i.open(ctx, par)
	if err == nil {
		return nil
	}
	if i.p.ctx.Err() != nil {
		return errClosed("connect")
	}
	switch c := fault.CodeOf(err); c {
	case fault.VersionMismatch, fault.FeatureRequired, fault.ProtocolViolation, fault.ResourceExhausted, fault.AlreadyExists:
		return err
	}
	return &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Detail: par.path, Err: cause(err, ctx)}
}

// cause is what an error says without the words that the caller says again.
func cause(err error, ctx context.Context) error {
	if e := ctx.Err(); e != nil {
		return e
	}
	var typed *fault.Error
	var call *os.SyscallError
	switch {
	case errors.As(err, &typed) && typed.Detail != "":
		return errors.New(typed.Detail)
	case errors.As(err, &call):
		return call.Err
	case errors.Is(err, io.EOF):
		return errors.New("the process on the other side closed the connection in the hello")
	}
	return err
}

func (i *initiator) open(ctx context.Context, par *params) error {
	conn, err := i.p.dial(ctx, par.path)
	if err != nil {
		return err
	}
	own, err := newPage(i.p.opt.MaxInFlight, int(par.slots))
	var peer *page
	if err == nil {
		peer, err = i.greet(ctx, conn, own, par)
	}
	if err == nil {
		err = i.begin(conn, own, peer)
	}
	if err != nil {
		own.close()
		peer.close()
		_ = conn.Close()
	}
	return err
}

// greet says the hello and reads the answer. The end of ctx closes the connection.
func (i *initiator) greet(ctx context.Context, conn *net.UnixConn, own *page, par *params) (*page, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	h := hello{minVersion: version, maxVersion: version, slots: uint32(len(own.slots)), session: par.session, secret: par.secret}
	if _, _, err := conn.WriteMsgUnix(h.bytes(), unix.UnixRights(own.fd), nil); err != nil {
		return nil, err
	}
	b, fd, err := readHello(conn, helloAnswerLen)
	if err != nil {
		return nil, err
	}
	defer func() {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}()
	status, err := parseHelloAnswer(b)
	switch {
	case err != nil:
		return nil, err
	case status == fault.NotFound, status == fault.PermissionDenied:
		return nil, fault.New(statusOf(status), "connect", "the socket under this path is another node's")
	case status != 0:
		return nil, fault.New(statusOf(status), "connect", "the peer refused the session")
	case !stop():
		return nil, ctx.Err()
	}
	return peersPage(fd, int(par.slots), len(own.slots))
}
