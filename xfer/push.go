package xfer

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// push drives protocol.Transfer: the source's side of a transfer.
type push struct {
	e          *Engine
	id         uint64
	transferID [16]byte
	cache      *cache
	client     *client
	blocks     []uint32
	ticket     wire.TicketGrant
	deadline   rdma.Instant
	begun      rdma.Instant
	cancelDial context.CancelFunc

	mu       sync.Mutex
	m        *protocol.Transfer
	queue    []protocol.TransferEvent
	effects  []protocol.TransferEffect
	stops    []func() bool
	ls       *linkState
	handle   uint64
	key      rdma.Key
	dst      layout.Geometry
	dstBlock []uint32
	opPieces uint32 // in one operation, see plan
	note     []byte
	cause    *fault.Error // the richest account of the failure that was heard
	flight   flightClock
	spans    sendSpans
}

// flightClock measures when bytes were in flight.
type flightClock struct{ first, last, since, busy rdma.Instant }

func (f *flightClock) up(now rdma.Instant) {
	if f.first == 0 {
		f.first = now
	}
	if f.since == 0 {
		f.since = now
	}
}

func (f *flightClock) down(now rdma.Instant, left uint64) {
	f.last = now
	if left == 0 && f.since != 0 {
		f.busy += now - f.since
		f.since = 0
	}
}

// Push starts a transfer of own blocks to a ticket's lease and returns before the peer was asked.
func (e *Engine) Push(id ClientID, r wire.PushRequest, blocks []uint32) (wire.PushInfo, error) {
	const op = "push"
	ca, err := e.ownCache(op, id, r.Cache)
	if err != nil {
		return wire.PushInfo{}, err
	}
	if err := wire.CheckMillis(op, "timeout_ms", r.TimeoutMillis); err != nil {
		return wire.PushInfo{}, err
	}
	if err := ca.geometry.CheckBlocks(op, blocks); err != nil {
		return wire.PushInfo{}, err
	}
	t, err := wire.ParseTicket(r.Ticket)
	if err != nil {
		return wire.PushInfo{}, err
	}
	if len(t.Grants) != 1 {
		return wire.PushInfo{}, &fault.Error{Code: fault.NotSupported, Op: op, Field: "ticket", Detail: "a ticket of several nodes is not served by this version"}
	}
	if g := t.Grants[0]; int(g.Blocks) != len(blocks) {
		return wire.PushInfo{}, fault.Invalid(op, "blocks", "%d blocks, the ticket's lease has %d", len(blocks), g.Blocks)
	}
	now := e.o.Clock.Now()
	p := &push{e: e, transferID: random16(), cache: ca, client: ca.client, blocks: blocks, ticket: t.Grants[0],
		begun: now, deadline: e.millis(r.TimeoutMillis)}
	p.m = protocol.NewTransfer(protocol.TransferWrite, ca.spec.Layout.Layers, uint32(len(blocks)), p.deadline)

	dial, cancel := context.WithTimeout(e.ctx, time.Duration(r.TimeoutMillis)*time.Millisecond)
	p.cancelDial = cancel
	p.mu.Lock() // events wait until the blocks are held
	defer p.mu.Unlock()
	e.mu.Lock()
	c, err := e.admit(op, id, "transfers", func(c *client) int { return c.pushes }, e.o.Limits.Pushes)
	if err == nil {
		// Drain and endCache find it from here on: what begins beside them is either refused or ended by them.
		c.pushes++
		p.id = e.id()
		e.pushes[p.id] = p
	}
	e.mu.Unlock()
	if err != nil {
		cancel()
		return wire.PushInfo{}, err
	}
	if err := ca.hold(blocks); err != nil {
		cancel()
		p.m.Step(nil, protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.CodeOf(err)}) // events that waited find it ended
		e.mu.Lock()
		c.pushes--
		e.mu.Unlock()
		p.forget()
		return wire.PushInfo{}, err
	}
	if r.Traceparent == "" {
		r.Traceparent = t.Traceparent
	}
	info := p.spans.begin(p, r.Traceparent, r.SpanID)

	p.stops = append(p.stops, e.o.Clock.AfterFunc(p.deadline, p.tick))
	if !r.Layerwise { // everything is ready now; FINISH still comes from the client, with its notification
		for layer := range ca.spec.Layout.Layers {
			p.run(protocol.TransferEvent{Kind: protocol.TransferLayer, Layer: layer})
		}
	}
	e.wg.Go(func() { p.connect(dial) }) // before the lock is dropped: while the push runs, Close waits
	info.Transfer, info.TransferID = p.id, hex16(p.transferID)
	return info, nil
}

// connect finds the link and sends BIND.
func (p *push) connect(ctx context.Context) {
	defer p.cancelDial()
	g := p.ticket
	link, err := p.e.o.Dialer.Dial(ctx, PeerRef{Node: g.Node, Epoch: g.Epoch, Addr: g.Addr, Tenant: p.client.info.Tenant})
	if err != nil {
		p.refused(err)
		return
	}
	ls := p.e.state(link)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.m.Phase() != protocol.TransferBinding {
		return
	}
	if ls == nil || !ls.addBinding(p.id, p) {
		p.run(protocol.TransferEvent{Kind: protocol.TransferPeerLost})
		return
	}
	p.ls = ls
	p.spans.binding(p)
	remaining := p.deadline - p.e.o.Clock.Now()
	if remaining < rdma.Instant(time.Millisecond) {
		return // too late to ask; the deadline ends it
	}
	ls.sendFrame(wire.KindBind, p.id, wire.Bind{
		Lease: g.Lease, Secret: g.Secret, Transfer: hex16(p.transferID), Attempt: 1,
		Model: p.cache.spec.Model, Revision: p.cache.spec.Revision, Compat: p.cache.spec.Compat, Layout: p.cache.spec.Layout,
		Blocks: uint32(len(p.blocks)), RemainingMillis: ceilMillis(remaining), Traceparent: p.spans.traceparent(),
	}, nil)
}

// ceilMillis rounds up, so that the target does not end the transfer before its source does.
func ceilMillis(d rdma.Instant) int64 {
	return int64((time.Duration(d) + time.Millisecond - 1) / time.Millisecond)
}

// bound takes the target's answer. The geometries were compared by the target; the source compares again, since a
// wrong answer would make it read the wrong bytes of its own client.
func (p *push) bound(ls *linkState, handle uint64, key rdma.Key, dst layout.Geometry, blocks []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handle, p.key, p.dst, p.dstBlock = handle, key, dst, blocks
	p.spans.bound(p)
	if err := layout.Compare(p.cache.spec.Layout, dst.Layout, layout.Identity{}, layout.Identity{}); err != nil || len(blocks) != len(p.blocks) {
		p.run(protocol.TransferEvent{Kind: protocol.TransferBound}, protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.LayoutMismatch})
		return
	}
	p.opPieces = p.plan(ls.out.caps)
	p.run(protocol.TransferEvent{Kind: protocol.TransferBound})
}

func (p *push) refused(err error) {
	fe := fault.From("push", err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear(fe)
	p.spans.bindFailed(fe)
	p.run(protocol.TransferEvent{Kind: protocol.TransferRefused, Code: fe.Code})
}

func (p *push) peerEnded(fe *fault.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear(fe)
	p.run(protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: fe.Code})
}

// hear keeps the first account with a text; the machine decides which code counts.
func (p *push) hear(fe *fault.Error) {
	if p.cause == nil || p.cause.Code == fault.StaleKey {
		p.cause = fe
	}
}

func (p *push) cancel(code fault.Code) {
	p.step(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: code}) // its end ends the dial, not the reverse
}

func (p *push) tick() { p.step(protocol.TransferEvent{Kind: protocol.TransferTick}) }

func (p *push) step(events ...protocol.TransferEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run(events...)
}

func (p *push) run(events ...protocol.TransferEvent) {
	p.queue = append(p.queue, events...)
	for i := 0; i < len(p.queue); i++ {
		ev := p.queue[i]
		ev.Now = p.e.o.Clock.Now()
		p.effects = p.m.Step(p.effects[:0], ev)
		if ev.Kind == protocol.TransferCompletion {
			p.flight.down(ev.Now, p.m.Outstanding())
			p.spans.completed(ev)
		}
		for _, f := range p.effects {
			p.apply(f, ev.Now)
		}
	}
	p.queue = p.queue[:0]
}

func (p *push) apply(f protocol.TransferEffect, now rdma.Instant) {
	switch f.Kind {
	case protocol.TransferPost:
		p.flight.up(now)
		p.spans.posting(p, f)
		p.ls.out.add(p, f.Layer, f.First, f.Count)
	case protocol.TransferCancelOps:
		for _, x := range p.ls.out.cancel(p) {
			p.queue = append(p.queue, protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: x.layer, First: x.first, Count: x.count, Code: f.Code})
		}
	case protocol.TransferSendFin:
		p.spans.finishing(p)
		p.ls.send(wire.KindFin, wire.Fin{Handle: p.handle, Pieces: p.m.Placed()}, p.note)
	case protocol.TransferSendAbort:
		p.ls.send(wire.KindAbort, wire.Abort{Handle: p.handle, Error: fault.ToWire(&fault.Error{Code: f.Code, Op: "push"})}, nil)
		p.ls.takePush(p.handle) // the handle means nothing any more
	case protocol.TransferTickAt:
		p.stops = append(p.stops, p.e.o.Clock.AfterFunc(f.At, p.tick))
	case protocol.TransferReleaseOwn:
		p.cache.unhold(p.blocks)
		p.e.mu.Lock()
		p.client.pushes-- // who hears of the end may ask for the next one
		p.e.mu.Unlock()
	case protocol.TransferResult:
		p.result(f)
		if f.Released {
			p.forget()
		}
	case protocol.TransferReleased:
		p.client.sink.Released(wire.Released{Transfer: p.id})
		p.forget()
	case protocol.TransferViolation:
		ls := p.ls
		p.e.wg.Go(func() {
			ls.link.Close(fault.New(fault.ProtocolViolation, "push", "DONE for a transfer that had not finished"))
		})
	}
}

// forget takes the push out of every table; a late BOUND still finds it and is answered with ABORT.
func (p *push) forget() {
	p.cancelDial()
	for _, stop := range p.stops {
		stop()
	}
	if p.ls != nil {
		p.ls.dropPush(p.id, p.handle)
	}
	e := p.e
	e.mu.Lock()
	delete(e.pushes, p.id)
	e.idle.Broadcast()
	e.mu.Unlock()
}

func (p *push) result(f protocol.TransferEffect) {
	ev := wire.TransferEvent{Transfer: p.id, TransferID: hex16(p.transferID), Peer: p.ticket.Node, Blocks: uint32(len(p.blocks)),
		Bytes: p.m.Placed() * p.cache.spec.Layout.PieceBytes(), Released: f.Released, BusyNanos: int64(p.flight.busy)}
	if p.ls != nil {
		ev.Provider, ev.Reason = p.ls.link.Provider()
	}
	if p.flight.first != 0 {
		ev.FirstNanos, ev.LastNanos = int64(p.flight.first-p.begun), int64(p.flight.last-p.begun)
	}
	var failure *fault.Error
	if f.Code != 0 {
		failure = &fault.Error{Code: f.Code, Op: "push", Peer: p.ticket.Node, Region: p.cache.name, MayHaveWritten: f.Wrote, Detail: f.Detail}
		if c := p.cause; c != nil && c.Code == f.Code {
			failure.Field, failure.Detail, failure.NoRetry = c.Field, c.Detail, c.NoRetry
			if c.Err != nil && failure.Detail == "" {
				failure.Detail = c.Err.Error()
			}
		}
		ev.Error = fault.ToWire(failure)
		p.e.o.Logger.Info("transfer ended", "transfer", ev.TransferID, "cache", p.cache.name, "peer", ev.Peer, "result", f.Code.String())
	}
	p.spans.ended(p, failure)
	p.client.sink.TransferEnded(ev)
}

// own finds a client's push; nil when it has ended, which its event says or will say.
func (e *Engine) own(id ClientID, transfer uint64) *push {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.pushes[transfer]
	if p == nil || p.client.id != id {
		return nil
	}
	return p
}

// PushLayer says that part of a layer is ready to be written.
func (e *Engine) PushLayer(id ClientID, part wire.LayerPart) {
	if p := e.own(id, part.Transfer); p != nil {
		p.step(protocol.TransferEvent{Kind: protocol.TransferLayer, Layer: part.Layer, First: part.First, Count: part.Count})
	}
}

// PushFinish says that everything was handed over.
func (e *Engine) PushFinish(id ClientID, transfer uint64, notification []byte) {
	p := e.own(id, transfer)
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(notification) > wire.MaxNotification {
		p.hear(fault.Invalid("push", "notification", "%d bytes, allowed 0..%d", len(notification), wire.MaxNotification))
		p.run(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.InvalidArgument})
		return
	}
	p.note = notification
	p.run(protocol.TransferEvent{Kind: protocol.TransferFinish})
}

// PushCancel ends a transfer early.
func (e *Engine) PushCancel(id ClientID, transfer uint64) {
	if p := e.own(id, transfer); p != nil {
		p.cancel(fault.Cancelled)
	}
}

func randomSpanID() (id trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id
}
