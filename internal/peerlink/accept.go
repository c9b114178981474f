package peerlink

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// What a connection opens with.
const (
	prefixLen     = 4
	controlPrefix = "KVXF"
)

// Serve accepts peers on ln until ctx ends, Close is called or ln is closed, and returns when their handshakes are
// over; the links live on. It closes ln. Other failures of Accept (no descriptors left) are waited out.
func (s *Links) Serve(ctx context.Context, ln net.Listener) error {
	if !s.enter() {
		_ = ln.Close()
		return errClosed
	}
	defer s.wg.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	defer func() { _ = ln.Close() }()
	defer context.AfterFunc(ctx, func() { _ = ln.Close() })()
	var wg sync.WaitGroup
	defer wg.Wait()
	var pause time.Duration
	for {
		conn, err := ln.Accept()
		switch {
		case err == nil:
			pause = 0
			v := s.door.enter(conn)
			wg.Go(func() { _ = s.serve(ctx, v) })
			continue
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return fault.Wrap(fault.Closed, "serve peers", err)
		}
		if pause == 0 {
			s.opt.Logger.Warn("accept failed", "error", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// ServeConn does for one connection what Serve does. It returns when the handshake is over: nil when there is a link
// or a lane now, else the reason, with the connection closed.
func (s *Links) ServeConn(ctx context.Context, conn net.Conn) error {
	return s.serve(ctx, s.door.enter(conn))
}

func (s *Links) serve(ctx context.Context, v *visitor) error {
	defer s.door.leave(v)
	if !s.enter() {
		_ = v.conn.Close()
		return errClosed
	}
	defer s.wg.Done()
	closeConn := func() { _ = v.conn.Close() }
	stop := context.AfterFunc(ctx, closeConn)
	stopToo := context.AfterFunc(s.ctx, closeConn)
	// free says that the connection has passed the handshake and that nobody has closed it meanwhile.
	free := func() bool {
		a, b, c := stop(), stopToo(), s.door.leave(v)
		return a && b && c
	}
	defer func() { stop(); stopToo() }()

	err := s.identify(ctx, v.conn, free)
	if err != nil {
		_ = v.conn.Close()
		s.opt.Logger.Debug("connection closed in its hello", "addr", addrOf(v.conn), "error", err)
	}
	return err
}

func addrOf(conn net.Conn) string {
	if a := conn.RemoteAddr(); a != nil {
		return a.String()
	}
	return ""
}

// identify reads what the connection is.
func (s *Links) identify(ctx context.Context, conn net.Conn, free func() bool) error {
	_ = conn.SetDeadline(time.Now().Add(s.opt.HelloTimeout))
	header := make([]byte, wire.HeaderSize)
	if _, err := io.ReadFull(conn, header[:prefixLen]); err != nil {
		return s.visitError(err)
	}
	if peertls.First(header[:prefixLen]) {
		return s.identifySecured(ctx, conn, header[:prefixLen], free)
	}
	if string(header[:prefixLen]) == controlPrefix {
		if s.opt.TLS != nil {
			return s.refuseClear(conn)
		}
		return s.acceptControl(conn, header, free)
	}
	if lanes := s.opt.Lanes[string(header[:prefixLen])]; lanes != nil {
		return s.acceptLane(conn, header[:prefixLen], lanes, free)
	}
	return violation("magic", "%q opens neither a control connection nor a lane of a provider here", header[:prefixLen])
}

func (s *Links) visitError(err error) error {
	if isTimeout(err) {
		return fault.New(fault.DeadlineExceeded, "hello", "no whole hello within %s", s.opt.HelloTimeout)
	}
	var typed *fault.Error
	if errors.As(err, &typed) {
		return err
	}
	return fault.Wrap(fault.PeerLost, "hello", err)
}

// acceptLane hands a lane on. Its provider puts a limit of its own on the hello.
func (s *Links) acceptLane(conn net.Conn, prefix []byte, lanes LaneServer, free func() bool) error {
	v := s.lanes.enter(conn)
	defer s.lanes.leave(v)
	if !free() {
		return fault.New(fault.Closed, "lane", "put out")
	}
	// Close waits for the lane's hello, so it ends it: the lane's session ends too.
	defer context.AfterFunc(s.ctx, func() { _ = lowest(conn).Close() })()
	_ = conn.SetDeadline(time.Time{})
	return lanes.ServeLane(conn, prefix)
}

// acceptControl answers a HELLO.
func (s *Links) acceptControl(conn net.Conn, header []byte, free func() bool) error {
	tune(conn)
	if _, err := io.ReadFull(conn, header[prefixLen:]); err != nil {
		return s.visitError(err)
	}
	f, err := wire.ReadBody(conn, header, helloLimits)
	switch {
	case errors.Is(err, fault.ErrProtocolViolation):
	case err != nil:
		return s.visitError(err)
	case f.Kind != wire.KindHello:
		err = violation("kind", "%s before HELLO", f.Kind)
	case f.Request == 0:
		err = violation("request_id", "0 in %s, which is answered", f.Kind)
	}
	if err != nil {
		sayGoodbye(conn, wire.NewError(0, err))
		return err
	}
	var h wire.Hello
	if err = s.admit(conn, &f, &h, free); err != nil {
		if h.Validate() != nil { // who it is nobody can say
			h = wire.Hello{}
		}
		s.opt.Logger.Log(s.ctx, s.strangers.level(h.Node, h.Epoch, err), "peer refused", "peer", h.Node, "addr", addrOf(conn), "error", err)
		sayGoodbye(conn, wire.NewError(f.Request, err))
	}
	return err
}

// admit makes the link for a HELLO, which it leaves in h. The answer is the first frame in the link's queue and leaves when the handler
// knows the link.
func (s *Links) admit(conn net.Conn, f *wire.Frame, h *wire.Hello, free func() bool) error {
	if err := f.Decode(h); err != nil {
		return err
	}
	version, err := s.checkHello(h)
	if err != nil {
		return err
	}
	if err := checkCertificate(conn, h.Node); err != nil {
		return err
	}
	s.mu.Lock()
	err = s.refusal()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	ref := xfer.PeerRef{Node: h.Node, Epoch: h.Epoch, Addr: addrOf(conn), Tenant: h.Tenant}
	def(&ref.Tenant, s.opt.Tenant)
	l := s.newLink(conn, ref, s.nextSession())
	params, err := s.half(l, h)
	if err != nil {
		return err
	}
	answer := s.introduce(wire.NewHelloOK(h, version), ref.Tenant)
	answer.Provider, answer.Reason, answer.Params = l.provider, l.reason, params
	ok, err := wire.NewFrame(wire.KindHelloOK, f.Request, &answer, nil)
	if err == nil {
		l.append(ok)
		err = s.add(l)
	}
	if err != nil {
		s.closeTarget(l)
		return err
	}
	if !free() {
		l.lost(nil, "the connection was closed in its hello")
	} else {
		l.mu.Lock()
		if l.err == nil { // the writer sets its own
			_ = conn.SetDeadline(time.Time{})
		}
		l.mu.Unlock()
	}
	l.open()
	l.start() // also of a link that is down already: its end waits for what it queued
	return nil
}

func (s *Links) closeTarget(l *link) {
	if err := l.target.Close(); err != nil {
		s.opt.Logger.Error("session close failed", "peer", l.ref.Node, "epoch", l.ref.Epoch, "session", uint64(l.session), "error", err)
	}
}
