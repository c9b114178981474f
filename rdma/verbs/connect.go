package verbs

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// Connect dials the side channel and returns when packets have gone through on at least one lane and every lane has been tried.
func (p *Provider) Connect(ctx context.Context, id rdma.SessionID, addr string, raw []byte) (rdma.Initiator, error) {
	par, err := parseParams(raw)
	if err != nil {
		return nil, err
	}
	switch {
	case par.tls && p.opt.TLS == nil:
		return nil, fault.New(fault.PermissionDenied, "connect", "the target takes side channels over TLS only, and this node has no certificates")
	case !par.tls && p.opt.TLS != nil:
		return nil, fault.New(fault.PermissionDenied, "connect", "this node exchanges keys over TLS only, and the target in clear")
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
	p := i.p
	ctx, cancel := context.WithTimeout(ctx, p.opt.DialTimeout)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	fail := func(err error) error {
		if p.ctx.Err() != nil {
			return errClosed("connect")
		}
		var typed *fault.Error
		if errors.As(err, &typed) {
			return err
		}
		return &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Peer: addr, Err: err}
	}
	if err := i.pair(par.rails); err != nil {
		return err
	}
	conn, err := p.dialSide(ctx, addr, par)
	if err != nil {
		return fail(err)
	}
	i.side = newSide(conn)
	i.side.start(i.handle, i.sideLost)
	i.mu.Lock()
	for _, l := range i.lanes {
		l.open()
	}
	i.mu.Unlock()
	select {
	case <-i.settled:
		err = i.anyUp()
	case <-ctx.Done():
		if err = i.anyUp(); err != nil { // one lane is enough; the others may still come
			i.mu.Lock()
			err = &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Peer: addr, Detail: "no lane came up", Err: errors.Join(ctx.Err(), i.refused)}
			i.mu.Unlock()
		}
	}
	if err != nil {
		_ = i.Close()
		return fail(err)
	}
	return nil
}

// anyUp is nil when a lane is up, else why the first was not.
func (i *initiator) anyUp() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, l := range i.lanes {
		if l.state == laneUp {
			return nil
		}
	}
	if i.refused != nil {
		return i.refused
	}
	return fault.New(fault.PeerLost, "connect", "the session ended: %s", i.ended)
}

// pair joins this node's rails with the peer's and makes the lanes.
func (i *initiator) pair(far []pick.PeerRail) error {
	near := i.p.railsNow()
	pairs, left := pick.Pairs(near, far, i.p.opt.Reach)
	i.unpaired = left
	if len(pairs) == 0 {
		return fault.New(fault.PeerUnreachable, "connect", "no rail reaches the peer: %s", strings.Join(left, "; "))
	}
	for _, x := range pairs {
		r := &initRail{pair: x, rate: pick.NewRate(min(x.Local.Gbps, x.Peer.Gbps))}
		for k := range near {
			if near[k].Name() == x.Local.Name() {
				r.near = i.p.rails[k]
			}
		}
		for k := range far {
			if far[k].Name == x.Peer.Name {
				r.far = k
			}
		}
		if len(i.rails) == maxRails {
			break
		}
		i.rails = append(i.rails, r)
	}
	// Lanes of different rails alternate, so that a few lanes are spread.
	for range i.p.opt.LanesPerRail {
		for _, r := range i.rails {
			if len(i.lanes) < maxLanes {
				i.lanes = append(i.lanes, &initLane{i: i, index: uint16(len(i.lanes)), rail: r})
			}
		}
	}
	i.trying = len(i.lanes)
	return nil
}

func (p *Provider) dialSide(ctx context.Context, addr string, par *params) (net.Conn, error) {
	conn, err := p.opt.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	raw := conn
	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()
	if par.tls {
		var secure *tls.Conn
		if secure, err = p.opt.TLS(ctx, conn); err == nil {
			conn = secure
		}
	}
	if err == nil {
		err = exchange(conn, &hello{minVersion: sideVersion, maxVersion: sideVersion, session: par.session, secret: par.secret})
	}
	if err == nil && !stop() {
		err = ctx.Err()
	}
	if err != nil {
		_ = raw.Close()
		if e := ctx.Err(); e != nil && errors.Is(err, net.ErrClosed) {
			err = e
		}
		return nil, err
	}
	tune(raw)
	return conn, nil
}

func tune(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetNoDelay(true)
	}
}

// exchange says the hello and reads the answer.
func exchange(conn net.Conn, h *hello) error {
	if _, err := conn.Write(h.bytes()); err != nil {
		return err
	}
	b := make([]byte, answerLen)
	if _, err := io.ReadFull(conn, b); err != nil {
		return err
	}
	a, err := parseAnswer(b)
	if err != nil {
		return err
	}
	if a.status != 0 {
		c := a.status
		if !c.Known() {
			c = fault.ProtocolViolation
		}
		return fault.New(c, "connect", "the peer refused the side channel")
	}
	return nil
}

// ServeSide takes over a connection that opened with SideMagic. A connection over TLS is a *tls.Conn whose handshake is over.
// prefix is what the listener has read of it, at least the magic. ServeSide returns when the hello is over: nil when the connection
// is a session's side channel, else the reason, with the connection closed.
func (p *Provider) ServeSide(conn net.Conn, prefix []byte) error {
	if !p.enter() {
		_ = lowest(conn).Close()
		return errClosed("side channel")
	}
	defer p.wg.Done()
	err := p.serve(conn, prefix)
	if err != nil {
		_ = lowest(conn).Close()
	}
	return err
}

func (p *Provider) serve(conn net.Conn, prefix []byte) error {
	if len(prefix) > helloLen {
		return violation("%d bytes before the answer to the hello, want %d", len(prefix), helloLen)
	}
	stop := context.AfterFunc(p.ctx, func() { _ = lowest(conn).Close() })
	defer stop()
	_ = conn.SetDeadline(time.Now().Add(p.opt.HelloTimeout))
	b := make([]byte, helloLen)
	copy(b, prefix)
	if _, err := io.ReadFull(conn, b[len(prefix):]); err != nil {
		return p.helloError(err)
	}
	t, s, err := p.admit(b, conn)
	a := answer{version: sideVersion, status: fault.CodeOf(err)}
	if _, werr := conn.Write(a.bytes()); werr != nil && err == nil {
		err = p.helloError(werr)
	}
	_ = conn.SetDeadline(time.Time{})
	if !stop() && err == nil {
		err = errClosed("side channel")
	}
	if s == nil {
		return err
	}
	if err != nil { // the session had got it already
		t.lost(err)
		return err
	}
	tune(lowest(conn))
	s.start(t.handle, t.lost)
	return nil
}

func (p *Provider) helloError(err error) error {
	var ne net.Error
	switch {
	case p.ctx.Err() != nil:
		return errClosed("side channel")
	case errors.As(err, &ne) && ne.Timeout():
		return fault.New(fault.DeadlineExceeded, "side channel", "no whole hello within %s", p.opt.HelloTimeout)
	}
	return fault.Wrap(fault.PeerLost, "side channel", err)
}

// admit checks a hello and gives its session the connection.
func (p *Provider) admit(b []byte, conn net.Conn) (*target, *side, error) {
	h, err := parseHello(b)
	if err != nil {
		return nil, nil, err
	}
	if _, secure := conn.(*tls.Conn); secure != (p.opt.TLS != nil) {
		return nil, nil, fault.New(fault.PermissionDenied, "side channel", "side channels are taken over TLS: %v", p.opt.TLS != nil)
	}
	p.mu.Lock()
	t := p.targets[h.session]
	p.mu.Unlock()
	if t == nil {
		return nil, nil, fault.New(fault.NotFound, "side channel", "session %d", h.session)
	}
	if !t.secret.equals(&h.secret) {
		return nil, nil, fault.New(fault.PermissionDenied, "side channel", "wrong secret for session %d", h.session)
	}
	s := newSide(conn)
	if err := t.attach(s); err != nil {
		return nil, nil, err
	}
	return t, s, nil
}
