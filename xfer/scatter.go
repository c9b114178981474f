package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// Scatter starts a transfer between an own region and an advertised one, range by range, and returns before the peer
// was asked. Without ranges it delivers the notification alone.
func (e *Engine) Scatter(id ClientID, r wire.ScatterRequest, ranges []wire.ScatterRange) (wire.PushInfo, error) {
	p, t, err := e.scatterTransfer("scatter", id, r.Region, r.Mode, r.Ticket, ranges)
	if err != nil {
		return wire.PushInfo{}, err
	}
	p.note = r.Notification
	if r.Traceparent == "" {
		r.Traceparent = t.Traceparent
	}
	return e.start(id, p, r.TimeoutMillis, r.TransferIdentity, r.Traceparent, r.SpanID,
		func() error { return e.useRaw("scatter", p.region) },
		func() {
			if n := p.plan.(*rangePlan).pieces(); n > 0 {
				p.run(protocol.TransferEvent{Kind: protocol.TransferLayer, Count: n})
			}
			p.run(protocol.TransferEvent{Kind: protocol.TransferFinish})
		})
}

// scatterTransfer checks what SCATTER and PREPARE of ranges have in common.
func (e *Engine) scatterTransfer(op string, id ClientID, region uint64, mode, ticket string, ranges []wire.ScatterRange) (*transfer, *wire.Ticket, error) {
	reg, err := e.ownRegion(op, id, region)
	if err != nil {
		return nil, nil, err
	}
	t, err := wire.ParseTicket(ticket)
	if err != nil {
		return nil, nil, err
	}
	if len(t.Grants) != 1 {
		return nil, nil, fault.Invalid(op, "ticket", "it has %d parts, allowed 1", len(t.Grants))
	}
	if err := checkGrant(op, t.Grants[0], mode, true); err != nil {
		return nil, nil, err
	}
	list := make([]rdma.Range, len(ranges))
	for i, x := range ranges {
		list[i] = rdma.Range(x)
	}
	if err := checkRanges(op, list, reg.mapping.Memory().Len); err != nil {
		return nil, nil, err
	}
	plan, ok := newRangePlan(list, e.o.Providers)
	if !ok {
		return nil, nil, fault.Invalid(op, "ranges", "they make more operations than the %d allowed: make several transfers", protocol.MaxOfferOps)
	}
	return &transfer{kind: kindScatter, write: mode == wire.ModeWrite, region: reg, ticket: t.Grants[0], plan: plan}, t, nil
}
