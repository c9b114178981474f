package xfer

import (
	"context"
	"crypto/subtle"
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

// lease drives protocol.Lease: the target's side of a transfer.
type lease struct {
	e          *Engine
	id         uint64
	grantID    blockdb.LeaseID
	secret     [16]byte
	cache      *cache
	client     *client
	blocks     []uint32
	generation uint64

	mu      sync.Mutex
	m       *protocol.Lease
	queue   []protocol.LeaseEvent
	effects []protocol.LeaseEffect
	visible []uint32 // layers to report
	stop    func() bool
	bind    *bindRequest // the one that owns the lease
	asking  *bindRequest // the one being answered
	note    []byte
	spans   receiveSpans
}

// bindRequest is who bound the lease, with what the answer needs.
type bindRequest struct {
	ls       *linkState
	request  uint64
	transfer string
	parent   string // traceparent
	handle   uint64
	key      rdma.Key
}

// Lease grants a write lease on blocks of an own cache.
func (e *Engine) Lease(ctx context.Context, id ClientID, r wire.LeaseRequest, blocks []uint32) (wire.LeaseInfo, error) {
	const op = "lease"
	ca, err := e.ownCache(op, id, r.Cache)
	if err != nil {
		return wire.LeaseInfo{}, err
	}
	switch r.Mode {
	case "write":
	case "read":
		return wire.LeaseInfo{}, &fault.Error{Code: fault.NotSupported, Op: op, Field: "mode", Detail: `this version grants "write" leases only`}
	default:
		return wire.LeaseInfo{}, fault.Invalid(op, "mode", `%.20q, allowed "write"`, r.Mode)
	}
	if err := wire.CheckMillis(op, "ttl_ms", r.TTLMillis); err != nil {
		return wire.LeaseInfo{}, err
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return wire.LeaseInfo{}, err
	}
	ctx = remoteContext(ctx, r.Traceparent)
	_, span := e.o.Tracer.Start(ctx, attr.SpanLease, trace.WithAttributes(attr.KeyCache.String(ca.name), attr.KeyBlocks.Int(len(blocks))))
	defer span.End()

	deadline := e.millis(r.TTLMillis)
	l := &lease{e: e, grantID: random16(), secret: random16(), cache: ca, client: ca.client, blocks: blocks,
		m: protocol.NewLease(ca.spec.Layout.Layers, uint32(len(blocks)), ca.spec.Layout.PieceBytes(), deadline)}
	l.mu.Lock() // events wait until the lease is granted
	defer l.mu.Unlock()
	e.mu.Lock()
	c, err := e.admit(op, id, "leases", func(c *client) int { return c.leases }, e.o.Limits.Leases)
	if err == nil {
		// Drain and endCache find it from here on: what begins beside them is either refused or ended by them.
		c.leases++
		l.id = e.id()
		e.leases[l.id], e.grants[l.grantID] = l, l
	}
	e.mu.Unlock()
	if err != nil {
		return wire.LeaseInfo{}, err
	}
	l.generation, err = ca.grant(blockdb.LeaseRecord{LeaseID: l.grantID, Kind: blockdb.KindWrite, Blocks: blocks, TraceID: [16]byte(span.SpanContext().TraceID())})
	if err != nil {
		l.m.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: fault.CodeOf(err)}) // events that waited find it ended
		e.mu.Lock()
		c.leases--
		delete(e.leases, l.id)
		delete(e.grants, l.grantID)
		e.idle.Broadcast()
		e.mu.Unlock()
		fail(span, err)
		return wire.LeaseInfo{}, err
	}
	l.stop = e.o.Clock.AfterFunc(deadline, l.tick)
	span.SetAttributes(attr.KeyLeaseID.String(hex16(l.grantID)))
	t := wire.Ticket{Traceparent: formatTraceparent(trace.SpanContextFromContext(ctx)), Grants: []wire.TicketGrant{{Node: e.o.Node, Epoch: e.o.Epoch, Addr: e.o.Addr,
		Lease: hex16(l.grantID), Secret: l.secret[:], Blocks: uint32(len(blocks))}}}
	return wire.LeaseInfo{Lease: l.id, Ticket: t.Encode(), Generation: l.generation}, nil
}

// Revoke takes a lease back. It returns at once; the lease's event comes when it is fenced.
func (e *Engine) Revoke(id ClientID, leaseID uint64) error {
	e.mu.Lock()
	_, err := e.lookup("revoke", id)
	l := e.leases[leaseID]
	e.mu.Unlock()
	if err != nil {
		return err
	}
	if l == nil || l.client.id != id {
		return nil // it has ended already, and its event says how
	}
	l.revoke(fault.LeaseRevoked)
	return nil
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

func (l *lease) tick()     { l.step(protocol.LeaseEvent{Kind: protocol.LeaseTick}) }
func (l *lease) peerLost() { l.step(protocol.LeaseEvent{Kind: protocol.LeasePeerLost}) }

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
		l.effects = l.m.Step(l.effects[:0], ev)
		for _, f := range l.effects {
			l.apply(f)
		}
	}
	l.queue = l.queue[:0]
	if len(l.visible) > 0 {
		l.client.sink.LayersVisible(wire.LayersVisible{Lease: l.id, Layers: l.visible})
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
		l.cache.mu.Lock()
		l.cache.quarantined = true
		l.cache.mu.Unlock()
		fe := l.failure(f.Code, true)
		fe.Detail = "the fence failed: the blocks are quarantined until the daemon exits"
		// ENDED would promise that nothing can land any more. The session's end is a second way to that.
		b := l.bind
		b.ls.dropLease(b.handle, b.key)
		l.e.wg.Go(func() { b.ls.link.Close(fault.New(fault.Internal, "fence", "a fence failed")) })
		l.ended(fe)
	}
}

// openWindow grants the window and answers the bind. The lease is findable by its key before the answer leaves, so
// no arrival can come too early.
func (l *lease) openWindow(deadline rdma.Instant) {
	b := l.asking
	l.spans.begin(l, b)
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
	l.bind, b.key = b, key
	b.handle = b.ls.addLease(key, l)
	if deadline != l.m.GrantDeadline() {
		l.stop()
		l.stop = l.e.o.Clock.AfterFunc(deadline, l.tick)
	}
	l.spans.bound(l)
	b.ls.answer(b.request, wire.Bound{Handle: b.handle, Key: uint64(key), Layout: l.cache.spec.Layout, NumBlocks: l.cache.spec.NumBlocks,
		RemainingMillis: max(1, ceilMillis(deadline-l.e.o.Clock.Now()))}, wire.AppendU32s(nil, l.blocks))
}

// fence runs outside the lock: it may wait for a system call in progress.
func (l *lease) fence(code fault.Code) {
	target, key := l.bind.ls.link.Target(), l.bind.key
	done := l.spans.fencing(l, code)
	l.e.wg.Go(func() {
		err := target.Fence(key)
		if err != nil {
			l.e.o.Logger.Error("fence failed: blocks are quarantined", "lease", hex16(l.grantID), "error", err)
		}
		done(err)
		l.step(protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: err == nil})
	})
}

func (l *lease) commit() {
	span := l.spans.start(l, attr.SpanCommit)
	rec := blockdb.CommitRecord{TransferID: l.bind.transfer, Peer: l.bind.ls.link.Peer().Node, Bytes: l.m.Bytes()}
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
	ev := wire.LeaseEvent{Lease: l.id, Bytes: l.m.Bytes()}
	code := fault.Code(0)
	if failure != nil {
		ev.Error, code = fault.ToWire(failure), failure.Code
	} else {
		ev.Generation = l.generation
	}
	past := code
	if b := l.bind; b != nil {
		past = fault.TicketBound
		ev.TransferID, ev.Peer, ev.Provider = b.transfer, b.ls.link.Peer().Node, b.ls.provider
		b.ls.dropLease(b.handle, b.key)
		switch {
		case l.m.Phase() == protocol.LeaseQuarantined:
		case failure == nil:
			b.ls.send(wire.KindDone, wire.Done{Handle: b.handle, Bytes: ev.Bytes}, nil)
		default:
			b.ls.send(wire.KindEnded, wire.Ended{Handle: b.handle, Error: ev.Error}, nil)
		}
	}
	l.stop()
	l.spans.ended(failure)
	var note []byte
	if failure == nil {
		note = l.note
	}
	if len(l.visible) > 0 { // layers are reported before the end
		l.client.sink.LayersVisible(wire.LayersVisible{Lease: l.id, Layers: l.visible})
		l.visible = nil
	}
	e := l.e
	e.mu.Lock()
	delete(e.grants, l.grantID)
	e.past.add(l.grantID, past, l.secret)
	l.client.leases-- // who hears of the end may ask for the next one
	e.mu.Unlock()
	l.client.sink.LeaseEnded(ev, note)
	if failure != nil {
		l.e.o.Logger.Info("lease ended", "lease", hex16(l.grantID), "cache", l.cache.name, "transfer", ev.TransferID, "result", code.String())
	}
	l.cache.unuse()
	e.mu.Lock()
	delete(e.leases, l.id)
	e.idle.Broadcast()
	e.mu.Unlock()
}

func (l *lease) err(op string, code fault.Code) *fault.Error {
	fe := &fault.Error{Code: code, Op: op, Peer: l.e.o.Node, Region: l.cache.name}
	if code == fault.TicketBound {
		fe.Detail = "the lease belongs to another transfer; take a new lease for another attempt"
	}
	return fe
}

func (l *lease) failure(code fault.Code, wrote bool) *fault.Error {
	fe := &fault.Error{Code: code, Op: "lease", Region: l.cache.name, MayHaveWritten: wrote}
	if l.bind != nil {
		fe.Peer = l.bind.ls.link.Peer().Node
	}
	return fe
}

// onBind answers BIND. Everything that can be wrong with it is looked at before the lease is claimed, so that a
// mistaken source does not use the ticket up.
func (e *Engine) onBind(ls *linkState, request uint64, b wire.Bind) {
	l, err := e.checkBind(ls, b)
	if err != nil {
		fe := fault.From("bind", err)
		fe.Peer = e.o.Node
		ls.refuse(request, fe)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	// Only an open window makes it the owner: a second one must not lead the first one's fence elsewhere.
	l.asking = &bindRequest{ls: ls, request: request, transfer: b.Transfer, parent: b.Traceparent}
	l.run(protocol.LeaseEvent{Kind: protocol.LeaseBind, Deadline: e.millis(b.RemainingMillis)})
	l.asking = nil
}

func (e *Engine) checkBind(ls *linkState, b wire.Bind) (*lease, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	id, _ := parseHex16(b.Lease)
	e.mu.Lock()
	draining := e.draining
	l := e.grants[id]
	past, known := e.past.find(id, b.Secret)
	e.mu.Unlock()
	if l == nil && known {
		return nil, fault.New(past, "bind", "the lease has ended")
	}
	if l == nil || subtle.ConstantTimeCompare(l.secret[:], b.Secret) != 1 {
		return nil, fault.New(fault.TicketInvalid, "bind", "no such lease, or the secret is wrong")
	}
	if ls.link.Peer().Tenant != l.client.info.Tenant {
		return nil, fault.New(fault.PermissionDenied, "bind", "the lease belongs to another tenant")
	}
	if draining {
		return nil, fault.New(fault.Draining, "bind", "node %s is shutting down", e.o.Node)
	}
	src := layout.Identity{Model: b.Model, Revision: b.Revision, Compat: b.Compat}
	if err := layout.Compare(b.Layout, l.cache.spec.Layout, src, l.cache.identity()); err != nil {
		return nil, err
	}
	if int(b.Blocks) != len(l.blocks) {
		return nil, fault.Invalid("bind", "blocks", "the transfer has %d blocks, the lease %d", b.Blocks, len(l.blocks))
	}
	return l, nil
}

// pastLeases remembers how the last leases ended, so that a late BIND gets the reason and not "no such lease".
type pastLeases struct {
	ring [1024]struct {
		id     blockdb.LeaseID
		secret [16]byte
		code   fault.Code
	}
	next int
	at   map[blockdb.LeaseID]int
}

func (p *pastLeases) add(id blockdb.LeaseID, code fault.Code, secret [16]byte) {
	if p.at == nil {
		p.at = map[blockdb.LeaseID]int{}
	}
	slot := &p.ring[p.next]
	delete(p.at, slot.id)
	slot.id, slot.secret, slot.code = id, secret, code
	p.at[id] = p.next
	p.next = (p.next + 1) % len(p.ring)
}

func (p *pastLeases) find(id blockdb.LeaseID, secret []byte) (fault.Code, bool) {
	i, ok := p.at[id]
	if !ok || subtle.ConstantTimeCompare(p.ring[i].secret[:], secret) != 1 {
		return 0, false
	}
	return p.ring[i].code, true
}

// fail marks a span as failed.
func fail(span trace.Span, err error) {
	span.SetStatus(codes.Error, fault.CodeOf(err).String())
	span.SetAttributes(attr.KeyResult.String(fault.CodeOf(err).String()))
}
