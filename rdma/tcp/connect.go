package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Connect dials the lanes side by side and returns when the target has answered on all of them.
func (p *Provider) Connect(ctx context.Context, id rdma.SessionID, addr string, raw []byte) (rdma.Initiator, error) {
	par, err := parseParams(raw)
	if err != nil {
		return nil, err
	}
	switch {
	case par.tls && p.opt.TLS == nil:
		return nil, fault.New(fault.PermissionDenied, "connect", "the target takes lanes over TLS only, and this node has no certificates")
	case !par.tls && p.opt.TLSLanes:
		return nil, fault.New(fault.PermissionDenied, "connect", "this node moves payload over TLS only, and the target takes lanes in clear")
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

	i := newInitiator(p, id)
	err = i.dial(ctx, addr, &par)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.initiators, id)
		return nil, err
	}
	p.initiators[id] = i
	return i, nil
}

func (i *initiator) dial(ctx context.Context, addr string, par *params) error {
	ctx, cancel := context.WithTimeout(ctx, i.p.opt.DialTimeout)
	defer cancel()
	defer context.AfterFunc(i.p.ctx, cancel)()
	lanes := make([]*initLane, min(i.p.opt.Lanes, int(par.lanes)))
	errs := make([]error, len(lanes))
	var wg sync.WaitGroup
	for k := range lanes {
		wg.Go(func() {
			if lanes[k], errs[k] = i.dialLane(ctx, addr, par, k); errs[k] != nil {
				cancel() // one missing lane is enough
			}
		})
	}
	wg.Wait()
	if err := firstCause(errs); err != nil {
		for _, l := range lanes {
			if l != nil {
				l.users.Store(1)
				l.unuse()
			}
		}
		if i.p.ctx.Err() != nil {
			return errClosed("connect")
		}
		var typed *fault.Error
		if errors.As(err, &typed) {
			return err
		}
		return &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Peer: addr, Err: err}
	}
	i.start(lanes)
	return nil
}

// firstCause prefers an error that is not only the end that another lane's failure put to this one.
func firstCause(errs []error) error {
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, context.Canceled)) {
			first = err
		}
	}
	return first
}

func (i *initiator) dialLane(ctx context.Context, addr string, par *params, index int) (*initLane, error) {
	conn, err := i.p.opt.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := new(initLane)
	c, err := i.p.carry(conn)
	if err == nil && par.tls {
		c.secure, err = i.p.opt.TLS(ctx, conn)
	}
	if err == nil {
		h := hello{minVersion: laneVersion, maxVersion: laneVersion, lane: uint16(index), session: par.session, secret: par.secret}
		err = exchange(ctx, c, &h)
	}
	if err == nil {
		i.p.tune(c, "initiator", i.id, index)
		if err = i.p.setup(&l.lane, index, c); err == nil {
			if err = i.p.attach(&l.lane, c, true); err != nil {
				_ = unix.Munmap(l.ctl)
			}
		}
	}
	if err != nil {
		_ = conn.Close()
		if e := ctx.Err(); e != nil && errors.Is(err, net.ErrClosed) {
			err = e
		}
		return nil, err
	}
	return l, nil
}

// exchange says the hello and reads the answer. The end of ctx closes the connection.
func exchange(ctx context.Context, c *carrier, h *hello) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	defer stop()
	if _, err := c.stream().Write(h.bytes()); err != nil {
		return err
	}
	b := make([]byte, answerLen)
	if _, err := io.ReadFull(c.stream(), b); err != nil {
		return err
	}
	a, err := parseAnswer(b)
	if err != nil {
		return err
	}
	if a.status != 0 {
		return fault.New(statusOf(a.status), "connect", "the peer refused lane %d", h.lane)
	}
	if !stop() {
		return ctx.Err()
	}
	return nil
}

// ServeLane takes over a connection that opened with LaneMagic. A connection over TLS is a *tls.Conn whose handshake is over.
// prefix is what the listener has read of it, at least the magic. ServeLane returns when the hello is over: nil when the connection is a lane, else the reason, with
// the connection closed. Reasons: DeadlineExceeded (slow hello), ProtocolViolation, VersionMismatch, FeatureRequired,
// NotFound (no such session), PermissionDenied (wrong secret; clear where TLS is wanted, or the reverse), AlreadyExists (lane
// taken), NotSupported (no file descriptor), Closed, PeerLost. The peer is told all of them that come after its whole hello.
func (p *Provider) ServeLane(conn net.Conn, prefix []byte) error {
	secure, _ := conn.(*tls.Conn)
	if secure != nil {
		conn = secure.NetConn() // what is closed: closing TLS waits for the peer
	}
	if !p.enter() {
		_ = conn.Close()
		return errClosed("lane")
	}
	defer p.wg.Done()
	c, err := p.carry(conn)
	if err == nil {
		c.secure = secure
		err = p.serve(c, prefix)
	}
	if err != nil {
		_ = conn.Close()
	}
	return err
}

func (p *Provider) serve(c *carrier, prefix []byte) error {
	conn := c.conn
	if len(prefix) > helloLen {
		return violation("%d bytes before the answer to the hello, want %d", len(prefix), helloLen)
	}
	stop := context.AfterFunc(p.ctx, func() { _ = conn.Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(p.opt.HelloTimeout))
	b := make([]byte, helloLen)
	copy(b, prefix)
	if _, err := io.ReadFull(c.stream(), b[len(prefix):]); err != nil {
		return p.helloError(err)
	}
	t, l, err := p.admit(b, c)
	a := answer{version: laneVersion, status: fault.CodeOf(err)}
	if _, werr := c.stream().Write(a.bytes()); werr != nil && err == nil {
		err = p.helloError(werr)
	}
	_ = conn.SetDeadline(time.Time{})
	if !stop() && err == nil {
		err = errClosed("lane")
	}
	if l != nil {
		if err == nil {
			err = t.attach(l, c)
		}
		t.begin(l, err)
	}
	return err
}

func (p *Provider) helloError(err error) error {
	var ne net.Error
	switch {
	case p.ctx.Err() != nil:
		return errClosed("lane")
	case errors.As(err, &ne) && ne.Timeout():
		return fault.New(fault.DeadlineExceeded, "lane", "no whole hello within %s", p.opt.HelloTimeout)
	}
	return fault.Wrap(fault.PeerLost, "lane", err)
}

// admit checks a hello and reserves its lane.
func (p *Provider) admit(b []byte, c *carrier) (*target, *targetLane, error) {
	h, err := parseHello(b)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case p.opt.TLSLanes && c.secure == nil:
		return nil, nil, fault.New(fault.PermissionDenied, "lane", "lanes are taken over TLS only")
	case !p.opt.TLSLanes && c.secure != nil:
		return nil, nil, fault.New(fault.PermissionDenied, "lane", "lanes are taken in clear only")
	}
	p.mu.Lock()
	t := p.targets[h.session]
	p.mu.Unlock()
	if t == nil {
		return nil, nil, fault.New(fault.NotFound, "lane", "session %d", h.session)
	}
	if !t.secret.equals(&h.secret) {
		return nil, nil, fault.New(fault.PermissionDenied, "lane", "wrong secret for session %d", h.session)
	}
	l, err := t.reserve(int(h.lane), c)
	if err != nil {
		return nil, nil, err
	}
	p.tune(c, "target", t.id, l.index)
	return t, l, nil
}
