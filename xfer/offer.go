package xfer

import (
	"context"
	"fmt"
	"sync"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// offer drives protocol.Offer: permission that several transfers may share. It is a read lease on blocks, or an advertised
// raw region.
type offer struct {
	permit
	access rdma.Access
	bounds rdma.Bounds
	silent bool // the owner's client did not ask for it and is not told

	mu      sync.Mutex
	m       *protocol.Offer
	queue   []protocol.OfferEvent
	effects []protocol.OfferEffect
	stop    func() bool
	holders map[uint64]*holder
	last    uint64       // holder number
	moved   rdma.Instant // when a holder came, went or moved bytes last, or the end was decided
}

// holder is one transfer under an offer, with a window of its own.
type holder struct {
	o     *offer
	id    uint64
	bind  *bindRequest
	spans receiveSpans
	note  []byte
	asked uint64 // the request of its RELEASE; 0: none
	stop  func() bool
	moved rdma.Instant // when it was bound, moved bytes last, or its fence began
}

// readFor says for whom a read lease is: nothing, for the cache's client.
type readFor struct {
	part  *part // of an instance's lease
	quota *int  // a reader that found the blocks by their keys; it counts there
}

// readLease grants a read lease on blocks of a cache. They are held until it ends.
func (e *Engine) readLease(ctx context.Context, id ClientID, ca *cache, r wire.LeaseRequest, blocks []uint32, who readFor) (*offer, wire.LeaseInfo, error) {
	const op = "lease"
	ctx = remoteContext(ctx, r.Traceparent)
	_, span := ca.client.tracer.Start(ctx, attr.SpanLease, trace.WithAttributes(attr.KeyCache.String(ca.name), attr.KeyBlocks.Int(len(blocks))))
	defer span.End()
	deadline := e.millis(r.TTLMillis)
	o := &offer{permit: permit{e: e, grantID: random16(), secret: random16(), region: ca.region, cache: ca, blocks: blocks, mode: wire.ModeRead, part: who.part, quota: who.quota},
		access: rdma.AccessRead, bounds: layout.NewBounds(ca.geometry, blocks), silent: who.quota != nil,
		m: protocol.NewOffer(rdma.AccessRead, max(1, r.Readers), deadline), holders: map[uint64]*holder{}}
	if err := o.begin(op, id, func() error { return ca.hold(op, blocks) }); err != nil {
		fail(span, err)
		return nil, wire.LeaseInfo{}, err
	}
	span.SetAttributes(attr.KeyLeaseID.String(hex16(o.grantID)))
	return o, wire.LeaseInfo{Lease: o.id, LeaseID: hex16(o.grantID), Ticket: o.ticket(formatTraceparent(trace.SpanContextFromContext(ctx)))}, nil
}

// Advertise opens parts of a raw region to whoever gets the ticket.
func (e *Engine) Advertise(ctx context.Context, id ClientID, r wire.Advertise, spans []wire.RegionSpan) (wire.LeaseInfo, error) {
	const op = "advertise"
	reg, err := e.ownRegion(op, id, r.Region)
	if err != nil {
		return wire.LeaseInfo{}, err
	}
	if err := r.Validate(); err != nil {
		return wire.LeaseInfo{}, err
	}
	size := reg.mapping.Memory().Len
	parts := []rdma.Span{{Len: size}}
	if len(spans) > 0 {
		parts = parts[:0]
		for _, s := range spans {
			parts = append(parts, rdma.Span(s))
		}
	}
	bounds, err := rdma.NewSpans(size, parts...)
	if err != nil {
		fe := fault.From(op, err)
		fe.Field = "spans"
		return wire.LeaseInfo{}, fe
	}
	ctx = remoteContext(ctx, r.Traceparent)
	_, span := reg.client.tracer.Start(ctx, attr.SpanLease, trace.WithAttributes(attr.KeyCache.String(reg.name)))
	defer span.End()
	access := rdma.AccessWrite
	if r.Mode == wire.ModeRead {
		access = rdma.AccessRead
	}
	deadline := e.millis(r.TTLMillis)
	o := &offer{permit: permit{e: e, grantID: random16(), secret: random16(), region: reg, mode: r.Mode}, access: access, bounds: bounds,
		m: protocol.NewOffer(access, r.Uses, deadline), holders: map[uint64]*holder{}}
	if err := o.begin(op, id, func() error { return e.useRaw(op, reg) }); err != nil {
		fail(span, err)
		return wire.LeaseInfo{}, err
	}
	span.SetAttributes(attr.KeyLeaseID.String(hex16(o.grantID)))
	return wire.LeaseInfo{Lease: o.id, LeaseID: hex16(o.grantID), Ticket: o.ticket(formatTraceparent(trace.SpanContextFromContext(ctx)))}, nil
}

// begin makes the offer known and takes its memory; events wait until it is whole.
func (o *offer) begin(op string, id ClientID, take func() error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := o.e.admitGrant(op, id, o); err != nil {
		return err
	}
	if err := take(); err != nil {
		o.m.Step(nil, protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: fault.CodeOf(err)}) // events that waited find it ended
		o.e.dropGrant(&o.permit)
		return err
	}
	o.countIn()
	o.stop = o.e.o.Clock.AfterFunc(o.m.Deadline(), o.tick)
	if o.part != nil {
		o.part.granted(o, 0)
	}
	return nil
}

func (o *offer) revoke(code fault.Code) {
	o.step(protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: code})
}

func (o *offer) revokeUnbound(code fault.Code) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.m.Holders() == 0 {
		o.run(protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: code})
	}
}

func (o *offer) renew(deadline rdma.Instant) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.run(protocol.OfferEvent{Kind: protocol.OfferRenew, Deadline: deadline})
	if o.m.Phase() != protocol.OfferOpen {
		return ended("renew", o.name(), o.m.Outcome())
	}
	return nil
}

// ended is the answer to a request about a permission that is over or ending.
func ended(op, name string, code fault.Code) error {
	if code == 0 {
		return &fault.Error{Code: fault.NotFound, Op: op, Region: name, Detail: "the lease is over"}
	}
	return &fault.Error{Code: code, Op: op, Region: name, Detail: "the lease has ended"}
}

func (o *offer) tick() { o.step(protocol.OfferEvent{Kind: protocol.OfferTick}) }

func (o *offer) step(ev protocol.OfferEvent) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.run(ev)
}

// maxHolders bounds the transfers that hold an offer at a time: whoever has its ticket may bind it.
const maxHolders = 4096

// bind makes the holder of a BIND.
func (o *offer) bind(b *bindRequest, deadline rdma.Instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.holders) >= maxHolders {
		b.ls.refuse(b.request, &fault.Error{Code: fault.ResourceExhausted, Op: "bind", Peer: o.e.o.Node, Region: o.name(),
			Detail: fmt.Sprintf("%d transfers hold the lease, allowed at a time %d", len(o.holders), maxHolders)})
		return
	}
	o.last++
	h := &holder{o: o, id: o.last, bind: b}
	o.holders[h.id] = h
	o.run(protocol.OfferEvent{Kind: protocol.OfferBind, Holder: h.id, Deadline: deadline})
}

// run feeds events and does what the machine says, in order. The caller holds o.mu.
func (o *offer) run(events ...protocol.OfferEvent) {
	o.queue = append(o.queue, events...)
	for i := 0; i < len(o.queue); i++ {
		ev := o.queue[i]
		ev.Now = o.e.o.Clock.Now()
		was := o.m.Phase()
		o.effects = o.m.Step(o.effects[:0], ev)
		if ev.Kind != protocol.OfferTick && ev.Kind != protocol.OfferRenew || o.m.Phase() != was {
			o.moved = ev.Now
		}
		for _, f := range o.effects {
			o.apply(f)
		}
	}
	o.queue = o.queue[:0]
	o.inState(offerStateOf(o.m))
}

func (o *offer) apply(f protocol.OfferEffect) {
	h := o.holders[f.Holder]
	switch f.Kind {
	case protocol.OfferRefuse:
		delete(o.holders, f.Holder)
		h.bind.ls.refuse(h.bind.request, o.refusal(f.Code))
	case protocol.OfferOpenWindow:
		o.openWindow(h, f.Deadline)
	case protocol.OfferExtend:
		_ = h.bind.ls.link.Target().Extend(h.bind.key, f.Deadline) // a window that is gone ends by its own event
		h.arm(f.Deadline)
	case protocol.OfferTickAt:
		o.stop()
		o.stop = o.e.o.Clock.AfterFunc(f.Deadline, o.tick)
	case protocol.OfferFence:
		o.fence(h, f.Code)
	case protocol.OfferHolderEnded:
		o.holderEnded(h, f)
		if o.m.Holders() == 0 && o.m.Phase() == protocol.OfferOpen && o.e.Draining() { // nobody can bind it any more
			o.queue = append(o.queue, protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: fault.Draining})
		}
	case protocol.OfferEnd:
		o.end(f, false)
	case protocol.OfferQuarantine:
		o.end(f, true)
	}
}

func (o *offer) refusal(code fault.Code) *fault.Error {
	fe := &fault.Error{Code: code, Op: "bind", Peer: o.e.o.Node, Region: o.name()}
	if code == fault.TicketBound {
		fe.Detail = "as many transfers as the lease permits have bound it"
	}
	return fe
}

// openWindow grants a holder's window and answers its BIND; it is findable by its key before the answer leaves.
func (o *offer) openWindow(h *holder, deadline rdma.Instant) {
	b := h.bind
	h.spans.begin(&o.permit, b)
	key, err := b.ls.link.Target().Grant(rdma.Window{Region: o.region.inner[b.ls.provider], Access: o.access, Bounds: o.bounds, Deadline: deadline})
	if err != nil {
		code := fault.CodeOf(err)
		if code == fault.Closed { // this node closes a session only when its link has ended
			code = fault.PeerLost
		}
		delete(o.holders, h.id)
		b.ls.refuse(b.request, o.refusal(code))
		o.queue = append(o.queue, protocol.OfferEvent{Kind: protocol.OfferWindowFailed, Holder: h.id, Code: code})
		return
	}
	b.key = key
	b.handle = b.ls.addBound(key, h)
	h.moved = o.moved
	h.arm(deadline)
	h.spans.bound()
	answer := wire.Bound{Handle: b.handle, Key: uint64(key), RemainingMillis: max(1, ceilMillis(deadline-o.e.o.Clock.Now()))}
	var array []byte
	if o.cache != nil {
		answer.Layout, answer.NumBlocks = o.cache.spec.Layout, o.cache.spec.NumBlocks
		array = wire.AppendU32s(nil, o.blocks)
	} else {
		answer.RegionBytes = o.region.mapping.Memory().Len
	}
	b.ls.answer(b.request, answer, array)
}

// arm sets the timer of a holder whose own time may be shorter than the offer's.
func (h *holder) arm(deadline rdma.Instant) {
	if h.stop != nil {
		h.stop()
	}
	h.stop = h.o.e.o.Clock.AfterFunc(deadline, h.o.tick)
}

// fence ends a holder's window here where nobody has to be waited for, else outside the lock.
func (o *offer) fence(h *holder, code fault.Code) {
	target, key := h.bind.ls.link.Target(), h.bind.key
	h.moved = o.e.o.Clock.Now()
	done, counted := h.spans.fencing(&o.permit, code), o.e.metrics.fencing(o.e, h.bind.ls.metrics)
	if tryFence(target, key) {
		done(nil)
		counted(nil)
		o.queue = append(o.queue, protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: h.id, OK: true})
		return
	}
	o.e.wg.Go(func() {
		err := target.Fence(key)
		if err != nil {
			o.e.o.Logger.Error("fence failed: memory is quarantined", "lease", hex16(o.grantID), "error", err)
		}
		done(err)
		counted(err)
		o.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: h.id, OK: err == nil})
	})
}

// holderEnded tells the peer and the owner. The window is fenced, or quarantined.
func (o *offer) holderEnded(h *holder, f protocol.OfferEffect) {
	delete(o.holders, h.id)
	b := h.bind
	if h.stop != nil {
		h.stop()
	}
	b.ls.dropBound(b.handle, b.key)
	ev := wire.HolderEvent{Lease: o.id, TransferID: b.transfer, Peer: b.ls.link.Peer().Node, Provider: b.ls.provider, Bytes: f.Bytes, Guarantee: o.region.guarantee()}
	var failure *fault.Error
	note := h.note
	if f.Code != 0 {
		failure = &fault.Error{Code: f.Code, Op: "lease", Peer: ev.Peer, Region: o.name(), MayHaveWritten: f.Wrote, Guarantee: o.region.guarantee()}
		ev.Error, note = fault.ToWire(failure), nil
	}
	h.spans.ended(&o.permit, failure)
	o.served(h, f)
	if !o.silent { // the owner sees the data and its word before the peer hears that it does
		o.client.sink.HolderEnded(ev, note)
	}
	switch {
	case f.Code == fault.Internal: // an answer would promise that nothing can touch the memory any more
		o.e.wg.Go(func() { b.ls.link.Close(fault.New(fault.Internal, "fence", "a fence failed")) })
	case h.asked != 0 && failure == nil:
		b.ls.answer(h.asked, nil, nil)
	case h.asked != 0:
		b.ls.refuse(h.asked, failure)
	case failure == nil:
		b.ls.send(wire.KindDone, wire.Done{Handle: b.handle, Bytes: f.Bytes}, nil)
	default:
		b.ls.send(wire.KindEnded, wire.Ended{Handle: b.handle, Error: ev.Error}, nil)
	}
}

// end tells the owner and forgets the offer.
func (o *offer) end(f protocol.OfferEffect, quarantined bool) {
	ev := wire.LeaseEvent{Lease: o.id, Bytes: f.Bytes, Guarantee: o.region.guarantee()}
	past := fault.TicketBound
	if f.Code != 0 {
		fe := &fault.Error{Code: f.Code, Op: "lease", Region: o.name(), MayHaveWritten: f.Wrote, Guarantee: o.region.guarantee()}
		if quarantined {
			fe.Detail = "the fence failed: the memory is quarantined until the daemon exits"
		}
		ev.Error, past = fault.ToWire(fe), f.Code
		if !o.silent {
			o.e.o.Logger.Info("lease ended", "lease", hex16(o.grantID), "region", o.name(), "result", f.Code.String())
		}
	}
	o.stop()
	o.over(f.Code)
	if quarantined {
		o.region.spoil(o.e, o.size())
		o.usage().quarantine()
	}
	e := o.e
	if o.cache != nil && !quarantined {
		o.cache.unhold(o.blocks)
	} else {
		o.usage().unuse()
	}
	e.mu.Lock()
	delete(e.grants, o.grantID)
	e.past.add(o.grantID, past, o.secret)
	*o.quota-- // who hears of the end may ask for the next one
	e.mu.Unlock()
	if !o.silent {
		o.tellEnd(ev, nil)
	}
	e.mu.Lock()
	delete(e.leases, o.id)
	e.idle.Broadcast()
	e.mu.Unlock()
}

func (o *offer) usage() *usage {
	if o.cache != nil {
		return &o.cache.usage
	}
	return &o.region.usage
}

func (h *holder) arrived(ev *rdma.Event) {
	h.o.mu.Lock()
	defer h.o.mu.Unlock()
	h.o.run(protocol.OfferEvent{Kind: protocol.OfferArrival, Holder: h.id, Tag: ev.Tag, Bytes: ev.Bytes})
	if !h.o.m.Fencing(h.id) {
		h.moved = h.o.moved
	}
}

func (h *holder) fin(pieces uint64, note []byte) {
	h.o.mu.Lock()
	defer h.o.mu.Unlock()
	if h.note == nil {
		h.note = note
	}
	h.o.run(protocol.OfferEvent{Kind: protocol.OfferFin, Holder: h.id, Pieces: pieces})
}

func (h *holder) release(request, bytes uint64, note []byte) {
	h.o.mu.Lock()
	defer h.o.mu.Unlock()
	if h.asked == 0 {
		h.asked, h.note = request, note
	}
	h.o.run(protocol.OfferEvent{Kind: protocol.OfferRelease, Holder: h.id, Bytes: bytes})
}

func (h *holder) abort(code fault.Code) {
	h.o.step(protocol.OfferEvent{Kind: protocol.OfferAbort, Holder: h.id, Code: code})
}

func (h *holder) peerLost() {
	h.o.step(protocol.OfferEvent{Kind: protocol.OfferPeerLost, Holder: h.id})
}
