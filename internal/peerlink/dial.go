package peerlink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// flight is a dial that is under way. done is closed when link or err is set.
type flight struct {
	done   chan struct{}
	link   *link
	err    error
	cancel context.CancelFunc

	// Under Links.mu.
	waiting int  // callers
	landing bool // LinkUp is due: too late to abandon it
	now     dialing
}

// Dial returns the live link to the peer, or makes it; concurrent callers share one attempt, which goes on as long as
// one of them waits. It fails at once when the peer refuses the connection. Where ref names a provider the link uses that
// one or is not made. Errors: PeerUnreachable (also when ctx's
// deadline passes), Cancelled, StaleEpoch, VersionMismatch, FeatureRequired, NotSupported (no provider in common, or not the one named),
// PermissionDenied, Draining (this node or the peer is shutting down), PeerLost, ResourceExhausted (links), Closed,
// InvalidArgument (ref), and whatever else the peer refuses with.
func (s *Links) Dial(ctx context.Context, ref xfer.PeerRef) (xfer.Link, error) {
	def(&ref.Tenant, s.opt.Tenant)
	h := wire.Hello{Tenant: ref.Tenant, WantNode: ref.Node, WantEpoch: ref.Epoch}
	if err := h.Validate(); err != nil {
		return nil, err
	}
	if err := requireNode("dial", ref.Node, ref.Epoch); err != nil {
		return nil, err
	}
	if err := s.checkOnly(&ref); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, waitError(ctx, &ref)
	}
	key := keyOf(&ref)
	s.mu.Lock()
	if err := s.refusal(); err != nil {
		s.mu.Unlock()
		return nil, err
	}
	if l := s.ready(key); l != nil {
		s.mu.Unlock()
		if l.bye.Load() {
			return nil, &fault.Error{Code: fault.Draining, Op: "dial", Peer: ref.Node, Detail: "the peer is draining"}
		}
		return l, nil
	}
	f := s.flights[key]
	if f == nil {
		f = &flight{done: make(chan struct{})}
		var fctx context.Context
		fctx, f.cancel = context.WithCancel(s.ctx)
		s.flights[key] = f
		s.wg.Add(1)
		go s.fly(fctx, f, ref)
	}
	f.waiting++
	s.mu.Unlock()

	select {
	case <-f.done:
	case <-ctx.Done():
		s.mu.Lock()
		f.waiting--
		if f.waiting == 0 && !f.landing {
			f.cancel()
			if s.flights[key] == f {
				delete(s.flights, key)
			}
		}
		s.mu.Unlock()
		return nil, waitError(ctx, &ref)
	}
	if f.err != nil {
		return nil, f.err
	}
	return f.link, nil
}

// ready is the link that a dial would make, when it is there already. A link that nobody restricted serves a dial that allows the
// provider that it uses; the reverse would keep a caller who has no wish on a provider that is not the best. mu is held.
func (s *Links) ready(key peerKey) *link {
	if l := s.out[key]; l != nil && l.cause() == nil {
		return l
	}
	free := peerKey{node: key.node, epoch: key.epoch, tenant: key.tenant}
	if l := s.out[free]; l != nil && (key.only == "" || l.provider == key.only) && !slices.Contains(strings.Split(key.without, ","), l.provider) && l.cause() == nil {
		return l
	}
	return nil
}

// checkOnly refuses a provider that this node does not have, and a reference that excludes all that it has.
func (s *Links) checkOnly(ref *xfer.PeerRef) error {
	if offer := s.allowed(ref); ref.Provider == "" && len(offer) == 0 {
		return &fault.Error{Code: fault.NotSupported, Op: "dial", Peer: ref.Node, Field: "provider",
			Detail: fmt.Sprintf("none is left without %q, this node has %q", ref.Without, s.offered())}
	}
	if ref.Provider == "" || s.provider(ref.Provider) != nil {
		return nil
	}
	return &fault.Error{Code: fault.NotSupported, Op: "dial", Peer: ref.Node, Field: "provider",
		Detail: fmt.Sprintf("%.64q, this node has %q", ref.Provider, s.offered()) + s.whyAbsent(ref.Provider)}
}

// onlyError says of an error which provider alone was allowed. What has nothing to do with the provider stays as it is.
func onlyError(ref *xfer.PeerRef, tried string, err error) error {
	var e *fault.Error
	if ref.Provider == "" || !errors.As(err, &e) || tried == "" && e.Code != fault.NotSupported {
		return err
	}
	return &fault.Error{Code: e.Code, Op: "dial", Peer: ref.Node, Field: "provider",
		Detail: fmt.Sprintf("provider %q alone was allowed, and is not usable: %s", ref.Provider, inWords(err))}
}

// waitError is what a caller gets whose ctx ended: a peer that could not be reached in time is unreachable.
func waitError(ctx context.Context, ref *xfer.PeerRef) error {
	code := fault.PeerUnreachable
	if errors.Is(ctx.Err(), context.Canceled) {
		code = fault.Cancelled
	}
	return &fault.Error{Code: code, Op: "dial", Peer: ref.Node, Detail: "no link to " + ref.Addr, Err: ctx.Err()}
}

// fly is a flight's goroutine.
func (s *Links) fly(ctx context.Context, f *flight, ref xfer.PeerRef) {
	defer s.wg.Done()
	defer f.cancel()
	var l *link
	var err error
	if p := s.inside(&ref); p != nil {
		l, err = s.connectInside(ctx, ref, p)
	} else {
		l, err = s.connectAny(ctx, f, ref)
	}
	if err == nil {
		err = s.land(f, l)
	}
	if err != nil && s.ctx.Err() != nil {
		err = errClosed
	}
	key := keyOf(&ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		// A link that is down by now has been forgotten already, or is about to be: forget needs this lock.
		if err = l.cause(); err == nil {
			s.out[key] = l
		}
	}
	f.link, f.err = l, err
	if s.flights[key] == f {
		delete(s.flights, key)
	}
	close(f.done)
}

// land makes the link known to the handler, unless everybody has stopped waiting.
func (s *Links) land(f *flight, l *link) error {
	s.mu.Lock()
	err := s.refusal()
	if err == nil && s.flights[l.key()] != f {
		err = fault.New(fault.Cancelled, "dial", "nobody waits any more")
	}
	f.landing = err == nil
	s.mu.Unlock()
	if err != nil {
		l.Close(err)
	}
	if l.open() {
		return nil
	}
	return l.cause()
}

// addrs lists where the peer may be, the best first.
func (s *Links) addrs(ref *xfer.PeerRef) []string {
	var list []string
	if s.opt.Resolve != nil {
		if addr, epoch, ok := s.opt.Resolve(ref.Node); ok && epoch == ref.Epoch && addr != "" && addr != ref.Addr {
			list = append(list, addr)
		}
	}
	if ref.Addr != "" {
		list = append(list, ref.Addr)
	}
	return list
}

// connectAny tries the peer's addresses. Of several errors that of a node which answered says most.
func (s *Links) connectAny(ctx context.Context, f *flight, ref xfer.PeerRef) (*link, error) {
	var best error
	for _, addr := range s.addrs(&ref) {
		ref.Addr = addr
		l, err := s.connect(ctx, f, ref)
		if err == nil {
			return l, nil
		}
		s.tried(f, err)
		s.opt.Logger.Log(ctx, s.strangers.level(ref.Node, ref.Epoch, err), "dial failed", "peer", ref.Node, "epoch", ref.Epoch, "addr", addr, "error", err)
		if best == nil || errors.Is(best, fault.ErrPeerUnreachable) {
			best = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	if best == nil { // there was none to try
		best = &fault.Error{Code: fault.PeerUnreachable, Op: "dial", Peer: ref.Node, Detail: "neither the ticket nor the directory has an address"}
	}
	if errors.Is(best, fault.ErrPeerUnreachable) && s.restarted(&ref) {
		best = &fault.Error{Code: fault.StaleEpoch, Op: "dial", Peer: ref.Node, Detail: "the directory has it under another epoch", Err: best}
	}
	return nil, best
}

// restarted says whether the directory has the node under another epoch. That only explains a failure: a node that
// answers at the ticket's address is believed, whatever the directory says.
func (s *Links) restarted(ref *xfer.PeerRef) bool {
	if s.opt.Resolve == nil {
		return false
	}
	_, epoch, ok := s.opt.Resolve(ref.Node)
	return ok && epoch != ref.Epoch
}

// connect makes a link that is started but not opened, by the best provider that works. One that cannot reach the peer
// although both nodes have it (shm across hosts, verbs between two fabrics) costs a control connection: the session's parameters
// come with HELLO_OK.
func (s *Links) connect(ctx context.Context, f *flight, ref xfer.PeerRef) (*link, error) {
	for {
		offer, reasons := s.usable(ref)
		l, tried, err := s.connectBy(ctx, f, ref, offer)
		if err == nil {
			if ref.Provider != "" {
				l.reason = ref.Provider + ": the only one that was allowed"
			}
			if len(ref.Without) > 0 {
				l.reason = l.provider + ": the best without " + strings.Join(ref.Without, ", ")
			}
			if len(reasons) > 0 {
				l.reason = fallback(l.provider, reasons)
			}
			return l, nil
		}
		if tried == "" || len(offer) == 1 || ctx.Err() != nil || !replaceable(err) {
			return nil, onlyError(&ref, tried, err)
		}
		s.shun(ref, tried, err)
		s.tried(f, err)
	}
}

// connectBy offers providers. tried names the one whose session could not be opened.
func (s *Links) connectBy(ctx context.Context, f *flight, ref xfer.PeerRef, offer []string) (_ *link, tried string, _ error) {
	s.at(f, ref.Addr, stepConnect)
	dctx, cancel := context.WithTimeout(ctx, s.opt.HelloTimeout)
	defer cancel()
	conn, err := s.opt.Dial(dctx, "tcp", ref.Addr)
	if err != nil {
		return nil, "", dialError(fault.PeerUnreachable, &ref, err)
	}
	s.at(f, ref.Addr, stepHello)
	tune(conn)
	plain := conn
	stop := context.AfterFunc(ctx, func() { _ = plain.Close() })
	_ = conn.SetDeadline(time.Now().Add(s.opt.HelloTimeout))
	var answer *wire.Hello
	conn, err = s.secure(ctx, plain, ref.Node)
	if err == nil {
		answer, err = s.exchange(conn, &ref, offer)
	}
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = plain.Close()
		return nil, "", s.helloError(ctx, &ref, err)
	}
	_ = conn.SetDeadline(time.Time{})

	l := s.newLink(conn, ref, s.nextSession())
	l.dialed, l.provider, l.reason = true, answer.Provider, answer.Reason
	if err := s.add(l); err != nil {
		sayGoodbye(conn, wire.NewError(0, err))
		return nil, "", err
	}
	l.start()
	s.at(f, ref.Addr, stepSession)
	// The lanes go where this connection went: a name may stand for several addresses.
	if err := l.openSession(ctx, addrOf(conn), answer.Params); err != nil {
		l.Close(err)
		close(l.opened)
		if cause := l.cause(); cause != err { //nolint:errorlint // the same one or another: the link was lost before
			return nil, "", cause
		}
		return nil, l.provider, err
	}
	return l, "", nil
}

// openSession connects the payload session; the end of the link ends the attempt.
func (l *link) openSession(ctx context.Context, addr string, params []byte) error {
	ctx, cancel := context.WithCancel(peertls.WithPeer(ctx, l.ref.Node))
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-l.down:
			cancel()
		case <-done:
		}
	}()
	var i rdma.Initiator
	i, err := l.s.provider(l.provider).Connect(ctx, l.session, addr, params)
	if err != nil {
		return fault.From("dial", err)
	}
	l.mu.Lock()
	err = l.err
	if err == nil {
		l.initiator = i
	}
	l.mu.Unlock()
	if err != nil {
		_ = i.Close()
	}
	return err
}

// exchange says HELLO with an offer of providers and judges the answer.
func (s *Links) exchange(conn net.Conn, ref *xfer.PeerRef, offer []string) (*wire.Hello, error) {
	h := s.introduce(wire.NewHello(), ref.Tenant)
	h.WantNode, h.WantEpoch, h.Providers, h.Absent = ref.Node, ref.Epoch, offer, s.opt.Absent
	f, err := wire.NewFrame(wire.KindHello, helloRequest, &h, nil)
	if err != nil {
		return nil, err
	}
	if _, err = conn.Write(wire.Append(nil, f)); err != nil {
		return nil, err
	}
	if f, err = wire.ReadFrame(conn, helloLimits); err != nil {
		return nil, err
	}
	switch {
	case f.Kind == wire.KindError:
		var w fault.Wire
		if err = f.Decode(&w); err != nil {
			return nil, err
		}
		return nil, fault.FromWire(&w)
	case f.Kind != wire.KindHelloOK || f.Request != helloRequest:
		return nil, violation("kind", "%s for request %d answers HELLO", f.Kind, f.Request)
	}
	var answer wire.Hello
	if err = f.Decode(&answer); err != nil {
		return nil, err
	}
	if err = checkAnswer(&answer, &h); err != nil { // the peer, which has a link already, is to log why it loses it
		_, _ = conn.Write(wire.Append(nil, wire.NewError(0, err)))
	}
	return &answer, err
}

// helloError gives an error of the hello its type and the peer's name. What happened after ctx ended came of that.
func (s *Links) helloError(ctx context.Context, ref *xfer.PeerRef, err error) error {
	err = peertls.Explain(err)
	var typed *fault.Error
	switch {
	case ctx.Err() != nil:
		return dialError(fault.Cancelled, ref, ctx.Err())
	case errors.As(err, &typed):
		e := *typed
		e.Peer = ref.Node
		return &e
	case isTimeout(err):
		return dialError(fault.PeerUnreachable, ref, fmt.Errorf("no answer to HELLO within %s", s.opt.HelloTimeout))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return dialError(fault.PeerLost, ref, errors.New("the peer closed the connection in the hello"))
	}
	return dialError(fault.PeerLost, ref, err)
}

func dialError(code fault.Code, ref *xfer.PeerRef, err error) error {
	return &fault.Error{Code: code, Op: "dial", Peer: ref.Node, Detail: "address " + ref.Addr, Err: err}
}
