package xfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// linkState is what the engine knows of a link: which transfers and leases use it.
type linkState struct {
	e        *Engine
	link     Link
	provider string
	metrics  *fabricMetrics
	out      *outQueue // source side; nil on the side that accepted

	mu      sync.Mutex
	down    bool
	binding map[uint64]*transfer                     // source: by request id
	owed    map[uint64]struct{}                      // source: requests that nobody waits for while the answer is still due
	asks    map[uint64]func(f wire.Frame, err error) // source: who waits for an answer to another request than BIND
	moving  map[uint64]*transfer                     // source: by the target's handle
	bound   map[uint64]bindee                        // target: by handle
	windows map[rdma.Key]bindee                      // target: by window
	parts   map[uint64]*part                         // target: of instances' leases, by handle
	claims  map[uint64]func(error)                   // target: who waits for CLAIMED
	wholes  map[uint64]wholeRef                      // source: parts of own instances' leases, by the peer's handle
	opens   int                                      // target, under Engine.mu: read leases that the peer opened by keys
	handles uint64
}

// LinkUp makes a link known. It comes before the link's first frame.
func (e *Engine) LinkUp(l Link) {
	name, _ := l.Provider()
	ls := &linkState{e: e, link: l, provider: name, metrics: e.metrics.fabric(name), binding: map[uint64]*transfer{}, owed: map[uint64]struct{}{}, asks: map[uint64]func(wire.Frame, error){}, moving: map[uint64]*transfer{},
		bound: map[uint64]bindee{}, windows: map[rdma.Key]bindee{}, parts: map[uint64]*part{}, claims: map[uint64]func(error){}, wholes: map[uint64]wholeRef{}}
	if init := l.Initiator(); init != nil {
		ls.out = newOutQueue(e, l, init, e.caps(name))
	}
	e.mu.Lock()
	e.links[l], e.sessions[l.Session()] = ls, ls
	e.mu.Unlock()
}

func (e *Engine) caps(provider string) rdma.Caps {
	for _, p := range e.o.Providers {
		if p.Name() == provider {
			return p.Caps()
		}
	}
	return rdma.Caps{}
}

func (e *Engine) state(l Link) *linkState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.links[l]
}

// LinkDown ends everything on a link. It is no fence: each lease on it is fenced by its own step.
func (e *Engine) LinkDown(l Link, reason error) {
	e.mu.Lock()
	ls := e.links[l]
	delete(e.links, l)
	e.mu.Unlock()
	if ls == nil {
		return
	}
	ls.mu.Lock()
	ls.down = true
	transfers := make([]*transfer, 0, len(ls.binding)+len(ls.moving))
	for _, p := range ls.binding {
		transfers = append(transfers, p)
	}
	for _, p := range ls.moving {
		transfers = append(transfers, p)
	}
	asks := ls.asks
	ls.asks = nil
	bound := make([]bindee, 0, len(ls.bound))
	for _, x := range ls.bound {
		bound = append(bound, x)
	}
	ls.mu.Unlock()
	if len(transfers)+len(bound) > 0 {
		e.o.Logger.Warn("link lost with transfers on it", "peer", l.Peer().Node, "transfers", len(transfers), "leases", len(bound), "reason", reason)
	}
	for _, answered := range asks {
		answered(wire.Frame{}, &fault.Error{Code: fault.PeerLost, Op: "link", Peer: l.Peer().Node})
	}
	e.endProbes(func(s *scratch) bool { return s.ls == ls })
	ls.askerLost()
	ls.ownersLost()
	e.openerLost(&ls.opens, fault.PeerLost)
	for _, p := range transfers {
		p.step(protocol.TransferEvent{Kind: protocol.TransferPeerLost})
	}
	for _, x := range bound {
		x.peerLost()
	}
	// A source's session stays known until its last completion: only that releases the client's memory.
	if ls.out == nil || ls.out.shut() {
		e.dropSession(l.Session())
	}
}

func (e *Engine) dropSession(id rdma.SessionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.sessions, id)
}

// LinkFrame takes one frame of the peer. It is called by one goroutine a link.
func (e *Engine) LinkFrame(l Link, f wire.Frame) {
	ls := e.state(l)
	if ls == nil {
		return
	}
	if err := ls.frame(f); err != nil {
		e.o.Logger.Warn("peer broke the protocol", "peer", l.Peer().Node, "kind", f.Kind.String(), "error", err)
		l.Close(err)
	}
}

func (ls *linkState) frame(f wire.Frame) error {
	source := ls.out != nil
	switch {
	case source && (f.Kind == wire.KindOK || f.Kind == wire.KindError):
		return ls.bindAnswer(f)
	case source && f.Kind == wire.KindDone:
		var d wire.Done
		if err := f.Decode(&d); err != nil {
			return err
		}
		if p := ls.takeTransfer(d.Handle); p != nil {
			p.step(protocol.TransferEvent{Kind: protocol.TransferDone})
		}
		return nil
	case source && f.Kind == wire.KindEnded:
		var d wire.Ended
		if err := f.Decode(&d); err != nil {
			return err
		}
		if d.Error == nil {
			return fault.New(fault.ProtocolViolation, "link", "ENDED without an error")
		}
		if p := ls.takeTransfer(d.Handle); p != nil {
			p.peerEnded(fault.From("push", fault.FromWire(d.Error)))
		}
		return nil
	case !source && f.Kind == wire.KindBind:
		var b wire.Bind
		if err := f.Decode(&b); err != nil {
			return err
		}
		ls.e.onBind(ls, f.Request, b)
		return nil
	case !source && f.Kind == wire.KindFin:
		var b wire.Fin
		if err := f.Decode(&b); err != nil {
			return err
		}
		if len(f.Array) > wire.MaxNotification {
			return fault.New(fault.ProtocolViolation, "fin", "a notification of %d bytes, allowed 0..%d", len(f.Array), wire.MaxNotification)
		}
		if l := ls.bindee(b.Handle); l != nil {
			l.fin(b.Pieces, f.Array)
		}
		return nil
	case !source && f.Kind == wire.KindAbort:
		var b wire.Abort
		if err := f.Decode(&b); err != nil {
			return err
		}
		code := fault.Cancelled
		if b.Error != nil && b.Error.Code.Known() && b.Error.Code != fault.Internal { // of a lease Internal says that its fence failed
			code = b.Error.Code
		}
		if l := ls.bindee(b.Handle); l != nil {
			l.abort(code)
		}
		return nil
	case !source && f.Kind == wire.KindRelease:
		var b wire.Release
		if err := f.Decode(&b); err != nil {
			return err
		}
		if len(f.Array) > wire.MaxNotification || f.Request == 0 {
			return fault.New(fault.ProtocolViolation, "release", "request %d, a notification of %d bytes, allowed 0..%d", f.Request, len(f.Array), wire.MaxNotification)
		}
		if l := ls.bindee(b.Handle); l != nil {
			l.release(f.Request, b.Bytes, f.Array)
		} else { // ENDED is on its way
			ls.refuse(f.Request, fault.New(fault.StaleKey, "release", "the lease has ended"))
		}
		return nil
	case f.Kind == wire.KindPeerBye:
		return nil // the peer refuses new transfers by itself
	}
	if take, ok := requestFrames[f.Kind]; ok && take.bySource != source {
		return take.f(ls, f)
	}
	return fault.New(fault.ProtocolViolation, "link", "%s is not allowed here", f.Kind)
}

// ask sends a request; answered is called once, from another goroutine: with the OK's frame, or with the error that the
// peer answered or PeerLost. It must not block.
func (ls *linkState) ask(request uint64, kind wire.Kind, body any, array []byte, answered func(f wire.Frame, err error)) {
	ls.mu.Lock()
	down := ls.down
	if !down {
		ls.asks[request] = answered
	}
	ls.mu.Unlock()
	if down {
		ls.e.wg.Go(func() {
			answered(wire.Frame{}, &fault.Error{Code: fault.PeerLost, Op: "link", Peer: ls.link.Peer().Node})
		})
		return
	}
	ls.sendFrame(kind, request, body, array)
}

// forgetAsk ends the wait for an answer; it reports whether the answer was still due.
func (ls *linkState) forgetAsk(request uint64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	_, due := ls.asks[request]
	delete(ls.asks, request)
	return due
}

// call is ask for a caller that waits.
func (ls *linkState) call(ctx context.Context, kind wire.Kind, body any, array []byte) (wire.Frame, error) {
	e := ls.e
	e.mu.Lock()
	request := e.id()
	e.mu.Unlock()
	type answer struct {
		f   wire.Frame
		err error
	}
	got := make(chan answer, 1)
	ls.ask(request, kind, body, array, func(f wire.Frame, err error) { got <- answer{f, err} })
	select {
	case a := <-got:
		return a.f, a.err
	case <-ctx.Done():
		ls.forgetAsk(request)
		fe := fault.From("link", ctx.Err())
		fe.Peer = ls.link.Peer().Node
		return wire.Frame{}, fe
	}
}

// answered gives an OK or ERROR to whoever asked; false: nobody did.
func (ls *linkState) answered(f wire.Frame) (bool, error) {
	ls.mu.Lock()
	take := ls.asks[f.Request]
	delete(ls.asks, f.Request)
	if take != nil {
		delete(ls.owed, f.Request)
	}
	ls.mu.Unlock()
	if take == nil {
		return false, nil
	}
	if f.Kind == wire.KindOK {
		take(f, nil)
		return true, nil
	}
	var w fault.Wire
	if err := f.Decode(&w); err != nil {
		take(wire.Frame{}, err)
		return true, err
	}
	take(wire.Frame{}, fault.FromWire(&w))
	return true, nil
}

// bindAnswer takes BOUND or a refusal.
func (ls *linkState) bindAnswer(f wire.Frame) error {
	if taken, err := ls.answered(f); taken {
		return err
	}
	ls.mu.Lock()
	p := ls.binding[f.Request]
	delete(ls.owed, f.Request)
	if f.Kind == wire.KindError {
		delete(ls.binding, f.Request)
	}
	ls.mu.Unlock()
	if p == nil {
		if f.Request == 0 {
			return fault.New(fault.ProtocolViolation, "link", "the peer ended the link")
		}
		return nil
	}
	if f.Kind == wire.KindError {
		var w fault.Wire
		if err := f.Decode(&w); err != nil {
			return err
		}
		p.bindRefused(ls, fault.FromWire(&w))
		return nil
	}
	b, blocks, err := ls.readBound(f)
	if err == nil {
		err = ls.addTransfer(f.Request, b.Handle, p)
	}
	if err != nil {
		fe := fault.New(fault.ProtocolViolation, "bind", "the answer cannot be used: %s", err)
		p.refused(fe)
		return fe
	}
	p.bound(ls, &b, blocks)
	return nil
}

// readBound reads and checks BOUND: a wrong one would make the source read and write by a geometry that overflows.
func (ls *linkState) readBound(f wire.Frame) (b wire.Bound, blocks []uint32, err error) {
	if err = f.Decode(&b); err != nil {
		return b, nil, err
	}
	if err = b.Validate(); err != nil {
		return b, nil, err
	}
	if blocks, err = wire.U32s("blocks", f.Array); err != nil {
		return b, nil, err
	}
	if b.NumBlocks == 0 { // an advertised region
		return b, nil, nil
	}
	return b, blocks, layout.Geometry{Layout: b.Layout, NumBlocks: b.NumBlocks}.CheckBlocks("bind", blocks)
}

// addTransfer moves a push from the table of requests to that of handles; LinkDown finds it in one of them at any time.
func (ls *linkState) addTransfer(request, handle uint64, p *transfer) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if handle == 0 || ls.moving[handle] != nil {
		return fault.New(fault.ProtocolViolation, "bind", "handle %d is 0 or in use", handle)
	}
	delete(ls.binding, request)
	ls.moving[handle] = p
	return nil
}

func (ls *linkState) takeTransfer(handle uint64) *transfer {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	p := ls.moving[handle]
	delete(ls.moving, handle)
	return p
}

func (ls *linkState) bindee(handle uint64) bindee {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.bound[handle]
}

func (ls *linkState) window(k rdma.Key) bindee {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return ls.windows[k]
}

// addBound names a bound lease on this link. The caller holds the lease's lock.
func (ls *linkState) addBound(k rdma.Key, l bindee) uint64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.handles++
	ls.bound[ls.handles], ls.windows[k] = l, l
	if ls.down { // LinkDown came between the bind and here and did not see this lease
		ls.e.wg.Go(l.peerLost)
	}
	return ls.handles
}

func (ls *linkState) dropBound(handle uint64, k rdma.Key) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	delete(ls.bound, handle)
	delete(ls.windows, k)
}

// addBinding registers a push that waits for its answer; false: the link is down.
func (ls *linkState) addBinding(request uint64, p *transfer) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.down {
		return false
	}
	ls.binding[request] = p
	return true
}

func (ls *linkState) dropTransfer(request, handle uint64) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if handle != 0 {
		delete(ls.moving, handle)
		delete(ls.binding, request)
		return
	}
	// A push that ended before the answer stays registered: the answer must be met with ABORT. A peer that lives and
	// yet answers nothing is given up before these become many.
	if ls.binding[request] == nil {
		return
	}
	ls.owe(request)
}

// owe notes that an answer is still due that nobody waits for, but that must be met when it comes. The caller holds ls.mu.
func (ls *linkState) owe(request uint64) {
	if ls.owed[request] = struct{}{}; len(ls.owed) == maxOwed {
		ls.e.wg.Go(func() { ls.link.Close(fault.New(fault.PeerLost, "link", "%d requests have no answer", maxOwed)) })
	}
}

// maxOwed is how many answers a peer may owe for transfers that have ended and parts that nobody waits for.
const maxOwed = 256

// send queues a frame; a link that is down makes itself known by LinkDown.
func (ls *linkState) send(kind wire.Kind, body any, array []byte) {
	ls.sendFrame(kind, 0, body, array)
}

func (ls *linkState) sendFrame(kind wire.Kind, request uint64, body any, array []byte) {
	f, err := wire.NewFrame(kind, request, body, array)
	if err == nil {
		err = ls.link.Send(f)
	}
	if err != nil {
		ls.e.o.Logger.Debug("frame not sent", "peer", ls.link.Peer().Node, "kind", kind.String(), "error", err)
	}
}

func (ls *linkState) answer(request uint64, body any, array []byte) {
	ls.sendFrame(wire.KindOK, request, body, array)
}

func (ls *linkState) refuse(request uint64, err error) {
	ls.e.metrics.errors[errorToPeer].add(fault.CodeOf(err))
	ls.sendFrame(wire.KindError, request, fault.ToWire(err), nil)
}

// poll moves a provider's events to leases and pushes.
func (e *Engine) poll(p rdma.Provider) {
	events := make([]rdma.Event, 256)
	for {
		n := p.Poll(events)
		if n == 0 {
			if err := p.Wait(e.ctx); err != nil {
				return
			}
			continue
		}
		e.events(events[:n])
	}
}

func (e *Engine) events(all []rdma.Event) {
	for i := range all {
		e.event(&all[i])
	}
}

func (e *Engine) event(ev *rdma.Event) {
	e.mu.Lock()
	ls := e.sessions[ev.Session]
	e.mu.Unlock()
	if ls == nil {
		return // of a link that is down: its pushes and leases are ended by it
	}
	switch ev.Kind {
	case rdma.EventCompletion:
		ls.out.completed(ev)
	case rdma.EventArrival:
		ls.metrics.arrived(ev)
		if l := ls.window(ev.Key); l != nil {
			l.arrived(ev)
		}
	case rdma.EventDown:
		ls.link.Close(fault.New(ev.Status, "session", "the payload session ended"))
	}
}
