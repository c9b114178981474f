package xfer

import (
	"context"
	"sync"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// lease drives protocol.Lease: the target's side of a push.
type lease struct {
	permit
	generation uint64

	mu      sync.Mutex
	m       *protocol.Lease
	queue   []protocol.LeaseEvent
	effects []protocol.LeaseEffect
	visible []uint32 // layers to report
	stop    func() bool
	bound   *bindRequest // the one that owns the lease
	asking  *bindRequest // the one being answered
	note    []byte
	spans   receiveSpans
	moved   rdma.Instant // when its phase changed or bytes arrived last
}

// Lease grants a lease on blocks of an own cache.
func (e *Engine) Lease(ctx context.Context, id ClientID, r wire.LeaseRequest, blocks []uint32) (wire.LeaseInfo, error) {
	const op = "lease"
	ca, err := e.ownCache(op, id, r.Cache)
	if err != nil {
		return wire.LeaseInfo{}, err
	}
	if err := r.Validate(); err != nil {
		return wire.LeaseInfo{}, err
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return wire.LeaseInfo{}, err
	}
	if r.Mode == wire.ModeRead {
		_, info, err := e.readLease(ctx, id, ca, r, blocks, readFor{})
		return info, err
	}
	return e.writeLease(ctx, id, ca, r, blocks, nil)
}

// writeLease grants a write lease on blocks of a cache; pt is the part of an instance's lease that it is, or nil.
func (e *Engine) writeLease(ctx context.Context, id ClientID, ca *cache, r wire.LeaseRequest, blocks []uint32, pt *part) (wire.LeaseInfo, error) {
	const op = "lease"
	ctx = remoteContext(ctx, r.Traceparent)
	_, span := ca.client.tracer.Start(ctx, attr.SpanLease, trace.WithAttributes(attr.KeyCache.String(ca.name), attr.KeyBlocks.Int(len(blocks))))
	defer span.End()

	deadline := e.millis(r.TTLMillis)
	l := &lease{permit: permit{e: e, grantID: random16(), secret: random16(), region: ca.region, cache: ca, blocks: blocks, mode: wire.ModeWrite, part: pt},
		m: protocol.NewLease(ca.spec.Layout.Layers, uint32(len(blocks)), ca.spec.Layout.PieceBytes(), deadline)}
	l.mu.Lock() // events wait until the lease is granted
	defer l.mu.Unlock()
	if err := e.admitGrant(op, id, l); err != nil {
		return wire.LeaseInfo{}, err
	}
	var err error
	l.generation, err = ca.grant(op, blockdb.LeaseRecord{LeaseID: l.grantID, Kind: blockdb.KindWrite, Blocks: blocks, TraceID: [16]byte(span.SpanContext().TraceID())})
	if err != nil {
		l.m.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: fault.CodeOf(err)}) // events that waited find it ended
		e.dropGrant(&l.permit)
		fail(span, err)
		return wire.LeaseInfo{}, err
	}
	l.countIn()
	l.stop = e.o.Clock.AfterFunc(deadline, l.tick)
	span.SetAttributes(attr.KeyLeaseID.String(hex16(l.grantID)))
	if pt != nil {
		pt.granted(l, l.generation)
	}
	return wire.LeaseInfo{Lease: l.id, LeaseID: hex16(l.grantID), Ticket: l.ticket(formatTraceparent(trace.SpanContextFromContext(ctx))), Generation: l.generation}, nil
}

func (l *lease) revoke(code fault.Code) {
	l.step(protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: code})
}

// revokeUnbound ends the lease unless a transfer has bound it.
func (l *lease) revokeUnbound(code fault.Code) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.m.Phase() == protocol.LeaseGranted {
		l.run(protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: code})
	}
}

func (l *lease) renew(deadline rdma.Instant) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run(protocol.LeaseEvent{Kind: protocol.LeaseRenew, Deadline: deadline})
	if p := l.m.Phase(); p != protocol.LeaseGranted && p != protocol.LeaseBound {
		return ended("renew", l.name(), l.m.Outcome())
	}
	return nil
}

func (l *lease) tick()     { l.step(protocol.LeaseEvent{Kind: protocol.LeaseTick}) }
func (l *lease) peerLost() { l.step(protocol.LeaseEvent{Kind: protocol.LeasePeerLost}) }

func (l *lease) abort(code fault.Code) {
	l.step(protocol.LeaseEvent{Kind: protocol.LeaseAbort, Code: code})
}

func (l *lease) arrived(ev *rdma.Event) {
	l.step(protocol.LeaseEvent{Kind: protocol.LeaseArrival, Tag: layout.Tag(ev.Tag), Bytes: ev.Bytes, Took: ev.Took})
}

func (l *lease) fin(pieces uint64, note []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.note == nil {
		l.note = note
	}
	l.run(protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: pieces})
}

// release is a reader's word; nobody reads under a write lease.
func (l *lease) release(request, _ uint64, _ []byte) {
	l.mu.Lock()
	if b := l.bound; b != nil {
		b.ls.refuse(request, fault.New(fault.ProtocolViolation, "release", "the lease is for writing"))
	}
	l.mu.Unlock()
	l.abort(fault.ProtocolViolation)
}

// step feeds events and does what the machine says, in order.
func (l *lease) step(events ...protocol.LeaseEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.run(events...)
}

func (l *lease) run(events ...protocol.LeaseEvent) {
	l.queue = append(l.queue, events...)
	for i := 0; i < len(l.queue); i++ {
		ev := l.queue[i]
		ev.Now = l.e.o.Clock.Now()
		if ev.Kind == protocol.LeaseArrival {
			l.spans.arrived(l, ev)
		}
		was := l.m.Phase()
		l.effects = l.m.Step(l.effects[:0], ev)
		if now := l.m.Phase(); now != was || now == protocol.LeaseBound && (ev.Kind == protocol.LeaseArrival || ev.Kind == protocol.LeaseFin) {
			l.moved = ev.Now
		}
		for _, f := range l.effects {
			l.apply(f)
		}
	}
	l.queue = l.queue[:0]
	l.inState(leaseStateOf(l.m.Phase()))
	if len(l.visible) > 0 {
		l.tellLayers(l.visible)
		l.visible = nil // the sink keeps the slice
	}
}

func (l *lease) apply(f protocol.LeaseEffect) {
	switch f.Kind {
	case protocol.LeaseRefuse:
		l.asking.ls.refuse(l.asking.request, l.err("bind", f.Code))
	case protocol.LeaseOpenWindow:
		l.openWindow(f.Deadline)
	case protocol.LeaseLayer:
		l.visible = append(l.visible, f.Layer)
		l.spans.layerPlaced(l, f.Layer)
	case protocol.LeaseLogRevoke:
		if err := l.cache.store.Revoke(l.grantID); err != nil {
			l.e.o.Logger.Error("revoke could not be logged", "lease", hex16(l.grantID), "error", err)
		}
	case protocol.LeaseExtend:
		l.extend(f.Deadline)
	case protocol.LeaseFence:
		l.fence(f.Code)
	case protocol.LeaseCommit:
		l.commit()
	case protocol.LeaseFree:
		if err := l.cache.store.Free(l.grantID); err != nil {
			l.e.o.Logger.Error("free could not be logged", "lease", hex16(l.grantID), "error", err)
		}
		l.ended(l.failure(f.Code, f.Wrote))
	case protocol.LeaseQuarantine:
		l.cache.quarantine()
		l.region.spoil(l.e, l.size())
		fe := l.failure(f.Code, true)
		fe.Detail = "the fence failed: the blocks are quarantined until the daemon exits"
		// ENDED would promise that nothing can land any more. The session's end is a second way to that.
		b := l.bound
		b.ls.dropBound(b.handle, b.key)
		l.e.wg.Go(func() { b.ls.link.Close(fault.New(fault.Internal, "fence", "a fence failed")) })
		l.ended(fe)
	}
}

// openWindow grants the window and answers the bind. The lease is findable by its key before the answer leaves, so
// no arrival can come too early.
func (l *lease) openWindow(deadline rdma.Instant) {
	b := l.asking
	l.spans.begin(&l.permit, b)
	key, err := b.ls.link.Target().Grant(rdma.Window{
		Region: l.cache.region.inner[b.ls.provider], Access: rdma.AccessWrite,
		Bounds: layout.NewBounds(l.cache.geometry, l.blocks), Deadline: deadline,
	})
	if err != nil {
		code := fault.CodeOf(err)
		if code == fault.Closed { // this node closes a session only when its link has ended
			code = fault.PeerLost
		}
		b.ls.refuse(b.request, l.err("bind", code))
		l.queue = append(l.queue, protocol.LeaseEvent{Kind: protocol.LeaseWindowFailed, Code: code})
		return
	}
	l.bound, b.key = b, key
	b.handle = b.ls.addBound(key, l)
	if deadline != l.m.GrantDeadline() {
		l.stop()
		l.stop = l.e.o.Clock.AfterFunc(deadline, l.tick)
	}
	l.spans.bound()
	b.ls.answer(b.request, wire.Bound{Handle: b.handle, Key: uint64(key), Layout: l.cache.spec.Layout, NumBlocks: l.cache.spec.NumBlocks,
		RemainingMillis: max(1, ceilMillis(deadline-l.e.o.Clock.Now()))}, wire.AppendU32s(nil, l.blocks))
}

// extend moves the timer and, where a transfer has bound the lease, its window's end.
func (l *lease) extend(deadline rdma.Instant) {
	l.stop()
	l.stop = l.e.o.Clock.AfterFunc(deadline, l.tick)
	if b := l.bound; b != nil {
		_ = b.ls.link.Target().Extend(b.key, deadline) // a window that is gone ends by its own event
	}
}

// fence ends the window here where nobody has to be waited for, else outside the lock.
func (l *lease) fence(code fault.Code) {
	target, key := l.bound.ls.link.Target(), l.bound.key
	done, counted := l.spans.fencing(&l.permit, code), l.e.metrics.fencing(l.e, l.bound.ls.metrics)
	if tryFence(target, key) {
		done(nil)
		counted(nil)
		l.queue = append(l.queue, protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: true})
		return
	}
	l.e.wg.Go(func() {
		err := target.Fence(key)
		if err != nil {
			l.e.o.Logger.Error("fence failed: blocks are quarantined", "lease", hex16(l.grantID), "error", err)
		}
		done(err)
		counted(err)
		l.step(protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: err == nil})
	})
}

// tryFence says whether a window is fenced without anybody's having waited; if not it is to be fenced.
func tryFence(t rdma.Target, k rdma.Key) bool {
	f, ok := t.(rdma.TryFencer)
	return ok && f.TryFence(k)
}

func (l *lease) commit() {
	span := l.spans.start(&l.permit, attr.SpanCommit)
	rec := blockdb.CommitRecord{TransferID: l.bound.transfer, Peer: l.bound.ls.link.Peer().Node, Bytes: l.m.Bytes()}
	if err := l.cache.store.Commit(l.grantID, rec); err != nil {
		// The bytes are whole and fenced; only their record is missing, so they are not served after a restart.
		l.e.o.Logger.Error("commit could not be logged", "lease", hex16(l.grantID), "error", err)
		fail(span, err)
	}
	span.End()
	l.ended(nil)
}

// ended tells everybody and forgets the lease. The blocks are fenced, or quarantined.
func (l *lease) ended(failure *fault.Error) {
	ev := wire.LeaseEvent{Lease: l.id, Bytes: l.m.Bytes(), Guarantee: l.region.guarantee()}
	code := fault.Code(0)
	if failure != nil {
		ev.Error, code = fault.ToWire(failure), failure.Code
	} else {
		ev.Generation = l.generation
	}
	l.over(code)
	past := code
	if b := l.bound; b != nil {
		past = fault.TicketBound
		ev.TransferID, ev.Peer, ev.Provider = b.transfer, b.ls.link.Peer().Node, b.ls.provider
		b.ls.dropBound(b.handle, b.key)
		switch {
		case l.m.Phase() == protocol.LeaseQuarantined:
		case failure == nil:
			b.ls.send(wire.KindDone, wire.Done{Handle: b.handle, Bytes: ev.Bytes}, nil)
		default:
			b.ls.send(wire.KindEnded, wire.Ended{Handle: b.handle, Error: ev.Error}, nil)
		}
	}
	l.stop()
	l.spans.ended(&l.permit, failure)
	var note []byte
	if failure == nil {
		note = l.note
	}
	if len(l.visible) > 0 { // layers are reported before the end
		l.tellLayers(l.visible)
		l.visible = nil
	}
	e := l.e
	e.mu.Lock()
	delete(e.grants, l.grantID)
	e.past.add(l.grantID, past, l.secret)
	if l.bound != nil && l.m.Phase() != protocol.LeaseQuarantined {
		e.attempts.end(l.attempt(l.bound))
	}
	*l.quota-- // who hears of the end may ask for the next one
	e.mu.Unlock()
	l.tellEnd(ev, note)
	if failure != nil {
		l.e.o.Logger.Info("lease ended", "lease", hex16(l.grantID), "cache", l.cache.name, "transfer", ev.TransferID, "result", code.String())
	}
	l.cache.unuse()
	e.mu.Lock()
	delete(e.leases, l.id)
	e.idle.Broadcast()
	e.mu.Unlock()
}

// bind claims the lease for a BIND.
func (l *lease) bind(b *bindRequest, deadline rdma.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	// Only an open window makes it the owner: a second one must not lead the first one's fence elsewhere.
	l.asking = b
	e, first := l.e, l.m.Phase() == protocol.LeaseGranted
	if first {
		e.mu.Lock()
		err := e.attempts.begin(l.attempt(b), l.wholeID(), b.attempt)
		e.mu.Unlock()
		if err != nil {
			l.asking = nil
			b.ls.refuse(b.request, err)
			return
		}
	}
	l.run(protocol.LeaseEvent{Kind: protocol.LeaseBind, Deadline: deadline})
	if first && l.bound == nil { // no window was opened
		e.mu.Lock()
		e.attempts.end(l.attempt(b))
		e.mu.Unlock()
	}
	l.asking = nil
}

func (l *lease) err(op string, code fault.Code) *fault.Error {
	fe := &fault.Error{Code: code, Op: op, Peer: l.e.o.Node, Region: l.cache.name}
	if code == fault.TicketBound {
		fe.Detail = "the lease belongs to another transfer; take a new lease for another attempt"
	}
	return fe
}

func (l *lease) failure(code fault.Code, wrote bool) *fault.Error {
	fe := &fault.Error{Code: code, Op: "lease", Region: l.cache.name, MayHaveWritten: wrote, Guarantee: l.region.guarantee()}
	if l.bound != nil {
		fe.Peer = l.bound.ls.link.Peer().Node
	}
	return fe
}

// fail marks a span as failed.
func fail(span trace.Span, err error) {
	span.SetStatus(codes.Error, fault.CodeOf(err).String())
	span.SetAttributes(attr.KeyResult.String(fault.CodeOf(err).String()))
}
