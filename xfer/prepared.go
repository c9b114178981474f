package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// Prepare starts a transfer whose list is bound once and posted many times; array is the list. The answer comes before the
// peer was asked, EVENT_PREPARED when posts may begin.
//
// To the peer and to the state machine it is a transfer like others, all of whose pieces are outstanding until it ends:
// pieces may be placed many times, and its end is FIN, RELEASE or ABORT. What is its own is in posts.go.
func (e *Engine) Prepare(id ClientID, r wire.Prepare, array []byte) (wire.PushInfo, error) {
	if r.Cache != 0 {
		blocks, err := wire.U32s("blocks", array)
		if err != nil {
			return wire.PushInfo{}, err
		}
		return e.prepareBlocks(id, r, blocks)
	}
	ranges, err := wire.ScatterRanges(array)
	if err != nil {
		return wire.PushInfo{}, err
	}
	return e.prepareRanges(id, r, ranges)
}

func (e *Engine) prepareBlocks(id ClientID, r wire.Prepare, blocks []uint32) (wire.PushInfo, error) {
	const op = "prepare"
	ca, t, g, err := e.blockTransfer(op, id, r.Cache, r.Ticket, r.Mode, blocks)
	if err != nil {
		return wire.PushInfo{}, err
	}
	p := &transfer{kind: kindPush, write: true, region: ca.region, cache: ca, blocks: blocks, ticket: g}
	take := func() error { return ca.hold(op, blocks) }
	if r.Mode == wire.ModeRead {
		p.kind, p.write, p.own = kindPull, false, random16()
		take = func() (err error) {
			p.generation, err = ca.grant(op, blockdb.LeaseRecord{LeaseID: p.own, Kind: blockdb.KindWrite, Blocks: blocks,
				TransferID: hex16(p.transferID), Peer: g.Node})
			return err
		}
	}
	return e.startPrepared(id, p, r, t, ca.spec.Layout.Layers, take)
}

func (e *Engine) prepareRanges(id ClientID, r wire.Prepare, ranges []wire.ScatterRange) (wire.PushInfo, error) {
	p, t, err := e.scatterTransfer("prepare", id, r.Region, r.Mode, r.Ticket, ranges)
	if err != nil {
		return wire.PushInfo{}, err
	}
	if p.plan.(*rangePlan).pieces() == 0 {
		return wire.PushInfo{}, fault.Invalid("prepare", "ranges", "they name no byte, allowed at least 1")
	}
	return e.startPrepared(id, p, r, t, 1, func() error { return e.useRaw("prepare", p.region) })
}

func (e *Engine) startPrepared(id ClientID, p *transfer, r wire.Prepare, t *wire.Ticket, layers uint32, take func() error) (wire.PushInfo, error) {
	p.posts = newPosts(p)
	if r.Traceparent == "" {
		r.Traceparent = t.Traceparent
	}
	return e.start(id, p, r.TimeoutMillis, r.TransferIdentity, r.Traceparent, r.SpanID, take, func() { p.handOver(layers) })
}

// finishPosts is PUSH_FINISH for a prepared transfer.
func (p *transfer) finishPosts(notification []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(notification) > wire.MaxNotification {
		p.hear(fault.Invalid(p.op(), "notification", "%d bytes, allowed 0..%d", len(notification), wire.MaxNotification))
		p.run(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.InvalidArgument})
		return
	}
	p.note = notification
	if events, ok := p.posts.finish(); !ok {
		p.run(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.Cancelled})
	} else {
		p.run(events...)
	}
}

// drainPrepared ends prepared transfers that nobody uses now, and the others when their posts have ended.
func (e *Engine) drainPrepared() {
	for _, p := range e.allTransfers() {
		if p.posts != nil && p.posts.drain() {
			p.cancel(fault.Draining)
		}
	}
}
