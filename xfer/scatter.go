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
	const op = "scatter"
	reg, err := e.ownRegion(op, id, r.Region)
	if err != nil {
		return wire.PushInfo{}, err
	}
	t, err := wire.ParseTicket(r.Ticket)
	if err != nil {
		return wire.PushInfo{}, err
	}
	if len(t.Grants) != 1 {
		return wire.PushInfo{}, fault.Invalid(op, "ticket", "it has %d parts, allowed 1", len(t.Grants))
	}
	if err := checkGrant(op, t.Grants[0], r.Mode, true); err != nil {
		return wire.PushInfo{}, err
	}
	list := make([]rdma.Range, len(ranges))
	for i, x := range ranges {
		list[i] = rdma.Range(x)
	}
	if err := checkRanges(op, list, reg.mapping.Memory().Len); err != nil {
		return wire.PushInfo{}, err
	}
	plan, ok := newRangePlan(list, e.o.Providers)
	if !ok {
		return wire.PushInfo{}, fault.Invalid(op, "ranges", "they make more operations than the %d allowed: make several transfers", protocol.MaxOfferOps)
	}
	p := &transfer{kind: kindScatter, write: r.Mode == wire.ModeWrite, region: reg, ticket: t.Grants[0], plan: plan, note: r.Notification}
	if r.Traceparent == "" {
		r.Traceparent = t.Traceparent
	}
	return e.start(id, p, r.TimeoutMillis, r.TransferIdentity, r.Traceparent, r.SpanID,
		func() error { return e.useRaw(op, reg) },
		func() {
			if n := plan.pieces(); n > 0 {
				p.run(protocol.TransferEvent{Kind: protocol.TransferLayer, Count: n})
			}
			p.run(protocol.TransferEvent{Kind: protocol.TransferFinish})
		})
}
