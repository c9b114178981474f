package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// Push starts a transfer of own blocks to a ticket's lease and returns before the peer was asked. The blocks are held
// until the transfer's end says that they are released.
func (e *Engine) Push(id ClientID, r wire.PushRequest, blocks []uint32) (wire.PushInfo, error) {
	const op = "push"
	ca, t, g, err := e.blockTransfer(op, id, r.Cache, r.Ticket, wire.ModeWrite, blocks)
	if err != nil {
		return wire.PushInfo{}, err
	}
	p := &transfer{kind: kindPush, write: true, region: ca.region, cache: ca, blocks: blocks, ticket: g, note: r.Notification}
	if r.Traceparent == "" {
		r.Traceparent = t.Traceparent
	}
	info, err := e.start(id, p, r.TimeoutMillis, r.TransferIdentity, r.Traceparent, r.SpanID,
		func() error { return ca.hold(op, blocks) },
		func() {
			if !r.Layerwise { // everything is ready now; without Finish that still comes from the client, with its notification
				p.handOver(ca.spec.Layout.Layers)
			}
			if r.Finish {
				p.run(protocol.TransferEvent{Kind: protocol.TransferFinish})
			}
		})
	info.Finished = err == nil && r.Finish
	return info, err
}

// blockTransfer checks what PUSH and PULL have in common.
func (e *Engine) blockTransfer(op string, id ClientID, cacheID uint64, ticket, mode string, blocks []uint32) (ca *cache, t *wire.Ticket, g wire.TicketGrant, err error) {
	if ca, err = e.ownCache(op, id, cacheID); err != nil {
		return nil, nil, g, err
	}
	if err = ca.geometry.CheckBlocks(op, blocks); err != nil {
		return nil, nil, g, err
	}
	if t, err = wire.ParseTicket(ticket); err != nil {
		return nil, nil, g, err
	}
	if g, err = chooseGrant(op, t, ca.spec.Layout.TPRank); err != nil {
		return nil, nil, g, err
	}
	if err = checkGrant(op, g, mode, false); err != nil {
		return nil, nil, g, err
	}
	if int(g.Blocks) != len(blocks) {
		return nil, nil, g, fault.Invalid(op, "blocks", "%d blocks, the ticket's lease has %d", len(blocks), g.Blocks)
	}
	return ca, t, g, nil
}

// chooseGrant takes the part of a ticket that a rank transfers with: that of its own rank where there are several.
func chooseGrant(op string, t *wire.Ticket, rank uint32) (wire.TicketGrant, error) {
	if len(t.Grants) == 1 {
		return t.Grants[0], nil
	}
	for _, g := range t.Grants {
		if g.Rank == rank {
			return g, nil
		}
	}
	return wire.TicketGrant{}, fault.Invalid(op, "ticket", "it has no part for rank %d among %d", rank, len(t.Grants))
}

// checkGrant refuses what the ticket does not permit before anybody is asked.
func checkGrant(op string, g wire.TicketGrant, mode string, raw bool) error {
	have := g.Mode
	if have == "" {
		have = wire.ModeWrite
	}
	switch {
	case g.Raw != raw && raw:
		return fault.Invalid(op, "ticket", "it is of a lease on blocks, allowed one of an advertised region")
	case g.Raw != raw:
		return fault.Invalid(op, "ticket", "it is of an advertised region, allowed one of a lease on blocks")
	case have != mode:
		return fault.Invalid(op, "ticket", "it permits to %s, not to %s", have, mode)
	}
	return nil
}

// PushLayer says that part of a layer is ready to be written.
func (e *Engine) PushLayer(id ClientID, part wire.LayerPart) {
	if p := e.own(id, part.Transfer); p != nil && p.kind == kindPush && p.posts == nil {
		p.step(protocol.TransferEvent{Kind: protocol.TransferLayer, Layer: part.Layer, First: part.First, Count: part.Count})
	}
}

// PushFinish says that everything was handed over.
func (e *Engine) PushFinish(id ClientID, transfer uint64, notification []byte) {
	p := e.own(id, transfer)
	if p != nil && p.posts != nil {
		p.finishPosts(notification)
		return
	}
	if p == nil || p.kind != kindPush {
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
