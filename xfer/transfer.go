package xfer

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// transferKind is which request began a transfer.
type transferKind uint8

const (
	kindPush    transferKind = iota // own blocks to a write lease's
	kindPull                        // a read lease's blocks to own ones
	kindScatter                     // raw memory, either way
)

// transfer drives protocol.Transfer: the initiator's side.
type transfer struct {
	e          *Engine
	id         uint64
	kind       transferKind
	write      bool // own memory is read and the peer's written; else the reverse
	transferID [16]byte
	attempt    uint32
	instance   string
	provider   string  // the only one that may be used; "": any but those of without
	region     *region // of the own memory
	cache      *cache  // nil: raw memory
	client     *client
	blocks     []uint32
	ticket     wire.TicketGrant
	deadline   rdma.Instant
	begun      rdma.Instant
	traceID    string
	cancelDial context.CancelFunc
	own        blockdb.LeaseID // pull: under which the own blocks are LEASED
	generation uint64          // pull: which they will have
	gaveBack   bool            // under Engine.mu: nothing touches the own memory any more; its end is being told

	mu      sync.Mutex
	m       *protocol.Transfer
	queue   []protocol.TransferEvent
	effects []protocol.TransferEffect
	stops   []func() bool
	ls      *linkState
	handle  uint64
	key     rdma.Key
	plan    plan
	note    []byte
	bytes   uint64       // whose placement is confirmed
	cause   *fault.Error // the richest account of the failure that was heard
	flight  flightClock
	asked   rdma.Instant      // when BIND was sent
	moved   rdma.Instant      // when anything but time last moved it
	end     *wire.TransferRow // how it ended, once that is told
	spans   sendSpans
	without []exclusion
	posts   *posts // of a prepared transfer
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

func (p *transfer) op() string {
	switch p.kind {
	case kindPull:
		return "pull"
	case kindScatter:
		return "scatter"
	}
	return "push"
}

// name is what errors, logs and spans call the own memory.
func (p *transfer) name() string {
	if p.cache != nil {
		return p.cache.name
	}
	return p.region.name
}

// start is what the requests that begin a transfer have in common: take makes the own memory ready, ready hands the pieces
// over that need no further word of the client. The answer comes before the peer was asked.
func (e *Engine) start(id ClientID, p *transfer, timeoutMillis int64, who wire.TransferIdentity, traceparent, spanID string, take func() error, ready func()) (wire.PushInfo, error) {
	if err := wire.CheckMillis(p.op(), "timeout_ms", timeoutMillis); err != nil {
		return wire.PushInfo{}, err
	}
	p.e, p.begun, p.deadline = e, e.o.Clock.Now(), e.millis(timeoutMillis)
	p.transferID, p.attempt, p.instance, p.provider = random16(), max(1, who.Attempt), who.Instance, who.Provider
	if err := p.checkProvider(); err != nil {
		return wire.PushInfo{}, err
	}
	if p.provider == "" {
		p.without = p.ownExclusions()
	}
	if who.TransferID != "" {
		p.transferID, _ = parseHex16(who.TransferID)
	}
	layers, pieces := uint32(1), uint32(0)
	if p.cache != nil {
		layers, pieces = p.cache.spec.Layout.Layers, uint32(len(p.blocks))
	} else {
		pieces = p.plan.(*rangePlan).pieces()
	}
	kind := protocol.TransferRead
	if p.write {
		kind = protocol.TransferWrite
	}
	p.m = protocol.NewTransfer(kind, layers, pieces, p.deadline)

	dial, cancel := context.WithTimeout(e.ctx, time.Duration(timeoutMillis)*time.Millisecond)
	p.cancelDial = cancel
	p.mu.Lock() // events wait until the own memory is taken
	defer p.mu.Unlock()
	e.mu.Lock()
	c, err := e.admit(p.op(), id, "transfers", func(c *client) int { return c.transfers }, e.o.Limits.Transfers)
	if err == nil {
		// Drain and endCache find it from here on: what begins beside them is either refused or ended by them.
		p.client = c
		c.transfers++
		p.id = e.id()
		e.transfers[p.id] = p
	}
	e.mu.Unlock()
	if err != nil {
		cancel()
		return wire.PushInfo{}, err
	}
	if err := take(); err != nil {
		p.m.Step(nil, protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.CodeOf(err)}) // events that waited find it ended
		e.mu.Lock()
		c.transfers--
		e.mu.Unlock()
		p.forget()
		return wire.PushInfo{}, err
	}
	info := p.spans.begin(p, traceparent, spanID)
	p.traceID = info.TraceID
	p.stops = append(p.stops, e.o.Clock.AfterFunc(p.deadline, p.tick))
	ready()
	e.wg.Go(func() { p.connect(dial, cancel) }) // before the lock is dropped: while the transfer runs, Close waits
	info.Transfer, info.TransferID = p.id, hex16(p.transferID)
	return info, nil
}

// checkProvider refuses a provider by name that this node does not have, or that does not take the own memory: nothing else
// takes its place.
func (p *transfer) checkProvider() error {
	if p.provider == "" || p.region.inner[p.provider] != nil {
		return nil
	}
	names := make([]string, 0, len(p.region.inner))
	for _, x := range p.e.o.Providers {
		if p.region.inner[x.Name()] != nil {
			names = append(names, x.Name())
		}
	}
	return &fault.Error{Code: fault.NotSupported, Op: p.op(), Region: p.name(), Field: "provider",
		Detail: fmt.Sprintf("%.64q, allowed for this memory on this node: %q", p.provider, names) + p.whyRefused()}
}

func (p *transfer) opKind() rdma.OpKind {
	if p.write {
		return rdma.OpWrite
	}
	return rdma.OpRead
}

// handOver says that every piece may move.
func (p *transfer) handOver(layers uint32) {
	for layer := range layers {
		p.run(protocol.TransferEvent{Kind: protocol.TransferLayer, Layer: layer})
	}
}

// connect finds the link and sends BIND.
func (p *transfer) connect(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	g := p.ticket
	p.mu.Lock()
	ref := p.peerRef()
	p.mu.Unlock()
	link, err := p.e.o.Dialer.Dial(ctx, ref)
	if err != nil {
		p.refused(p.noLink(err))
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
	p.ls, p.asked = ls, p.e.o.Clock.Now()
	p.spans.binding(p)
	remaining := p.deadline - p.e.o.Clock.Now()
	if remaining < rdma.Instant(time.Millisecond) {
		return // too late to ask; the deadline ends it
	}
	b := wire.Bind{Lease: g.Lease, Secret: g.Secret, Transfer: hex16(p.transferID), Attempt: p.attempt, Instance: p.instance,
		RemainingMillis: ceilMillis(remaining), Traceparent: p.spans.traceparent()}
	if !p.write {
		b.Mode = wire.ModeRead
	}
	if p.cache != nil {
		s := &p.cache.spec
		b.Model, b.Revision, b.Compat, b.Layout, b.Blocks = s.Model, s.Revision, s.Compat, s.Layout, uint32(len(p.blocks))
	} else {
		b.Raw = true
	}
	ls.sendFrame(wire.KindBind, p.id, b, nil)
}

// peerRef is whom the ticket names. The caller holds p.mu.
func (p *transfer) peerRef() PeerRef {
	g := &p.ticket
	return PeerRef{Node: g.Node, Epoch: g.Epoch, Addr: g.Addr, Tenant: p.client.info.Tenant, Provider: p.provider, Without: p.excluded()}
}

// ceilMillis rounds up, so that the target does not end the transfer before its source does.
func ceilMillis(d rdma.Instant) int64 {
	return int64((time.Duration(d) + time.Millisecond - 1) / time.Millisecond)
}

// bound takes the target's answer. The geometries were compared by the target; this side compares again, since a
// wrong answer would make it touch the wrong bytes of its own client.
func (p *transfer) bound(ls *linkState, b *wire.Bound, blocks []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handle, p.key = b.Handle, rdma.Key(b.Key)
	p.spans.bound(p)
	if p.cache == nil {
		if b.NumBlocks != 0 {
			p.boundWrongly(fault.ProtocolViolation)
			return
		}
		p.run(protocol.TransferEvent{Kind: protocol.TransferBound})
		return
	}
	if err := layout.Compare(p.cache.spec.Layout, b.Layout, layout.Identity{}, layout.Identity{}); err != nil || len(blocks) != len(p.blocks) || b.NumBlocks == 0 {
		p.boundWrongly(fault.LayoutMismatch)
		return
	}
	p.spans.planning()
	plan := newBlockPlan(ls.out.caps, p.cache.geometry, layout.Geometry{Layout: b.Layout, NumBlocks: b.NumBlocks}, p.blocks, blocks)
	p.plan = plan
	p.spans.cut(plan)
	p.run(protocol.TransferEvent{Kind: protocol.TransferBound})
}

// boundWrongly ends the transfer before it takes the answer: taken, pieces that were handed over already would be posted
// without a plan. The answer then meets the end and is told ABORT. The caller holds p.mu.
func (p *transfer) boundWrongly(code fault.Code) {
	p.run(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: code}, protocol.TransferEvent{Kind: protocol.TransferBound})
}

func (p *transfer) refused(err error) {
	fe := fault.From(p.op(), err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear(fe)
	p.spans.bindFailed(fe)
	p.run(protocol.TransferEvent{Kind: protocol.TransferRefused, Code: fe.Code})
}

func (p *transfer) peerEnded(fe *fault.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hear(fe)
	p.run(protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: fe.Code})
}

// hear keeps the first account with a text; the machine decides which code counts.
func (p *transfer) hear(fe *fault.Error) {
	if p.cause == nil || p.cause.Code == fault.StaleKey {
		p.cause = fe
	}
}

func (p *transfer) cancel(code fault.Code) {
	p.step(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: code}) // its end ends the dial, not the reverse
}

func (p *transfer) tick() { p.step(protocol.TransferEvent{Kind: protocol.TransferTick}) }

func (p *transfer) step(events ...protocol.TransferEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.run(events...)
}

func (p *transfer) run(events ...protocol.TransferEvent) {
	p.queue = append(p.queue, events...)
	for i := 0; i < len(p.queue); i++ {
		ev := p.queue[i]
		ev.Now = p.e.o.Clock.Now()
		was := p.m.Phase()
		p.effects = p.m.Step(p.effects[:0], ev)
		if ev.Kind != protocol.TransferTick || p.m.Phase() != was {
			p.moved = ev.Now
		}
		if ev.Kind == protocol.TransferCompletion {
			if ev.Code == 0 && p.posts == nil {
				p.bytes += p.plan.bytes(ev.Layer, ev.First, ev.Count)
			}
			p.flight.down(ev.Now, p.m.Outstanding())
			p.spans.completed(ev)
		}
		for _, f := range p.effects {
			p.apply(f, ev.Now)
		}
	}
	p.queue = p.queue[:0]
}

func (p *transfer) apply(f protocol.TransferEffect, now rdma.Instant) {
	switch f.Kind {
	case protocol.TransferPost:
		p.flight.up(now)
		p.spans.posting(p, f)
		if p.posts != nil {
			p.posts.token(f.Layer, f.First, f.Count)
			break
		}
		p.ls.out.add(p, f.Layer, f.First, f.Count)
	case protocol.TransferCancelOps:
		if p.posts != nil {
			p.queue = append(p.queue, p.posts.stop(f.Code)...)
			break
		}
		for _, x := range p.ls.out.cancel(p) {
			p.queue = append(p.queue, protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: x.layer, First: x.first, Count: x.count, Code: f.Code})
		}
	case protocol.TransferSendFin:
		p.spans.finishing(p)
		if p.write {
			p.ls.send(wire.KindFin, wire.Fin{Handle: p.handle, Pieces: p.m.Placed()}, p.note)
			return
		}
		p.ls.ask(p.id, wire.KindRelease, wire.Release{Handle: p.handle, Bytes: p.bytes}, p.note, p.released)
	case protocol.TransferSendAbort:
		p.ls.send(wire.KindAbort, wire.Abort{Handle: p.handle, Error: fault.ToWire(&fault.Error{Code: f.Code, Op: p.op()})}, nil)
		p.ls.takeTransfer(p.handle) // the handle means nothing any more
	case protocol.TransferTickAt:
		p.stops = append(p.stops, p.e.o.Clock.AfterFunc(f.At, p.tick))
	case protocol.TransferReleaseOwn:
		p.giveBack(f.Code)
		p.e.mu.Lock()
		p.client.transfers-- // who hears of the end may ask for the next one
		p.gaveBack = true
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
			ls.link.Close(fault.New(fault.ProtocolViolation, p.op(), "DONE for a transfer that had not finished"))
		})
	}
}

// released takes the answer to RELEASE: OK says that the memory was held throughout, and nothing else does.
func (p *transfer) released(_ wire.Frame, err error) {
	if err != nil {
		p.peerEnded(fault.From(p.op(), err))
		return
	}
	p.step(protocol.TransferEvent{Kind: protocol.TransferDone})
}

// giveBack is done when nothing touches the own memory any more. code 0: the transfer's outcome is good.
func (p *transfer) giveBack(code fault.Code) {
	switch p.kind {
	case kindPush:
		p.cache.unhold(p.blocks)
	case kindPull:
		p.settle(code)
	case kindScatter:
		p.region.unuse()
	}
}

// forget takes the transfer out of every table; a late BOUND still finds it and is answered with ABORT.
func (p *transfer) forget() {
	p.cancelDial()
	for _, stop := range p.stops {
		stop()
	}
	if p.ls != nil {
		p.ls.forgetAsk(p.id)
		p.ls.dropTransfer(p.id, p.handle)
	}
	e := p.e
	if p.end != nil {
		e.ended.add(p.end, e.o.Clock.Now())
	}
	e.mu.Lock()
	delete(e.transfers, p.id)
	e.idle.Broadcast()
	e.mu.Unlock()
}

func (p *transfer) result(f protocol.TransferEffect) {
	ev := wire.TransferEvent{Transfer: p.id, TransferID: hex16(p.transferID), Peer: p.ticket.Node, Blocks: uint32(len(p.blocks)),
		Bytes: p.bytes, Released: f.Released, BusyNanos: int64(p.flight.busy), Guarantee: p.region.guarantee()}
	if p.ls != nil {
		ev.Provider, ev.Reason = p.way()
	}
	if p.flight.first != 0 {
		ev.FirstNanos, ev.LastNanos = int64(p.flight.first-p.begun), int64(p.flight.last-p.begun)
	}
	var failure *fault.Error
	if f.Code != 0 {
		failure = &fault.Error{Code: f.Code, Op: p.op(), Peer: p.ticket.Node, Region: p.name(), MayHaveWritten: f.Wrote, Detail: f.Detail,
			Guarantee: p.region.guarantee()}
		if c := p.cause; c != nil && c.Code == f.Code {
			failure.Field, failure.Detail, failure.NoRetry, failure.Retry = c.Field, c.Detail, c.NoRetry, c.Retry
			if c.Err != nil && failure.Detail == "" {
				failure.Detail = c.Err.Error()
			}
		}
		if f.Code == fault.StaleKey { // a lease that ended without a word; another may be had
			failure.NoRetry, failure.Retry = false, true
		}
		ev.Error = fault.ToWire(failure)
		p.e.o.Logger.Info("transfer ended", "transfer", ev.TransferID, "region", p.name(), "peer", ev.Peer, "result", f.Code.String())
	} else if p.kind == kindPull {
		ev.Generation = p.generation
	}
	p.spans.ended(p, failure)
	p.e.metrics.transferEnded(p, f.Code)
	p.end = p.endRow(&ev)
	if p.posts != nil {
		p.posts.told(f.Code)
	}
	p.client.sink.TransferEnded(ev)
}

// own finds a client's transfer; nil when it has ended, which its event says or will say.
func (e *Engine) own(id ClientID, transfer uint64) *transfer {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := e.transfers[transfer]
	if p == nil || p.client.id != id {
		return nil
	}
	return p
}

// CancelTransfer ends a transfer early, whichever request began it.
func (e *Engine) CancelTransfer(id ClientID, transfer uint64) {
	if p := e.own(id, transfer); p != nil {
		p.cancel(fault.Cancelled)
	}
}

func randomSpanID() (id trace.SpanID) {
	_, _ = rand.Read(id[:])
	return id
}
