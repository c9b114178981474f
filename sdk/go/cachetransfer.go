package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// Write writes blocks to the lease that the ticket names, in the order of both block lists; as many as the lease has. Of an
// instance's ticket the part of this cache's TPRank is taken.
//
// It returns as soon as the own daemon knows of it; the transfer's end is the returned push's. Until the push is released
// nobody may change the bytes that were handed over: all of them, or with [Layerwise] those of the layers named to
// [Push.Layer]. ctx bounds the call, which also ends after the client's time-out ([WithTimeout]); its deadline is the
// transfer's, 30 seconds where it has none; its cancellation after the return ends nothing, see [Push.Cancel].
//
// Errors: InvalidArgument names the field, and the index of a wrong block id; TicketInvalid, the ticket cannot be read;
// DeadlineExceeded, the own daemon does not answer (Released false).
func (c *Cache) Write(ctx context.Context, blocks Blocks, ticket string, options ...TransferOption) (*Push, error) {
	const op = "write"
	at, ids, o, err := c.transferTerms(op, blocks, options)
	if err != nil {
		return nil, err
	}
	if o.layerwise && len(o.note) > 0 {
		return nil, invalid(op, "notification", "with Layerwise, allowed is Finish's")
	}
	timeout := timeLeft(ctx, defaultTransfer)
	sp := startTransferSpan(ctx, "kvxfer.write")
	p := &Push{layers: c.spec.Layout.Layers, layerwise: o.layerwise, note: o.note, finished: false}
	p.afterAccept = p.accept
	p.init(at.session, op, c.name, ids, c.Guarantee(), p, timeout, sp)
	ctx, cancel := context.WithTimeout(ctx, c.client.timeout) // the deadline is the transfer's, and may be far
	defer cancel()
	fe := p.start(ctx, request{op: op, kind: wire.KindPush, data: wire.AppendU32s(nil, ids), body: &wire.PushRequest{Cache: at.cache, Ticket: ticket,
		TimeoutMillis: millis(timeout), Layerwise: o.layerwise, Finish: !o.layerwise, Notification: o.note, Traceparent: sp.parent(), SpanID: sp.spanID(), TransferIdentity: o.identity}}, p, p.Cancel)
	if fe != nil {
		return nil, p.leaving(fe)
	}
	return p, nil
}

// Read reads the blocks of the read lease that the ticket names into own ones, in the order of both lists; as many as the
// lease has.
//
// What the own blocks held is given up with the call. They are COMMITTED when the transfer ends well; after any other end
// they are FREE. It returns as soon as the own daemon knows of it. ctx is as for Write.
//
// Errors: InvalidArgument names the field, and the index of a wrong block id; BlocksBusy, an own block is leased, held or
// being fenced; TicketInvalid, the ticket cannot be read; DeadlineExceeded, the own daemon does not answer (Released false).
func (c *Cache) Read(ctx context.Context, blocks Blocks, ticket string, options ...TransferOption) (*Pull, error) {
	const op = "read"
	at, ids, o, err := c.transferTerms(op, blocks, options)
	if err != nil {
		return nil, err
	}
	p, body := c.newPull(ctx, op, at, ids, o)
	timeout := time.Until(p.until)
	ctx, cancel := context.WithTimeout(ctx, c.client.timeout) // the deadline is the transfer's, and may be far
	defer cancel()
	// Before the daemon hears of it: from its answer on bytes may land.
	p.sent = true
	p.taken = c.vouched.take(ids)
	if fe := p.start(ctx, request{op: op, kind: wire.KindPull, data: wire.AppendU32s(nil, ids), body: body(ticket, timeout)}, p, p.Cancel); fe != nil {
		if refused(fe) { // nothing was changed
			c.vouched.restore(p.taken)
		}
		return nil, p.leaving(fe)
	}
	return p, nil
}

// ReadFrom is Read from a holder that [Client.Lookup] found, of the blocks that have these keys: the beginning of what was
// looked up, as many as own blocks, each once, 65,536 bytes in all. It returns at once, and also what the own daemon refuses
// is told by the returned pull: NotFound where the holder has evicted a block since.
func (c *Cache) ReadFrom(ctx context.Context, blocks Blocks, holder Holder, keys [][]byte, options ...TransferOption) (*Pull, error) {
	const op = "read"
	at, ids, o, err := c.transferTerms(op, blocks, options)
	if err != nil {
		return nil, err
	}
	data, keyBytes, err := packKeys(op, keys, wire.MaxLookupKeys)
	if err != nil {
		return nil, err
	}
	if len(keys) != len(ids) {
		return nil, invalid(op, "keys", "%d for %d blocks, allowed one for each", len(keys), len(ids))
	}
	if ctx.Err() != nil {
		return nil, newError(contextEnded(ctx, op, "the context had ended before the call"), true, ids)
	}
	p, body := c.newPull(ctx, op, at, ids, o)
	ms := millis(time.Until(p.until))
	fe := p.open(&wire.Open{Node: holder.Node, Epoch: holder.Epoch, Addr: holder.Addr, Cache: holder.Cache, Model: c.spec.Model, Revision: c.spec.Revision,
		Compat: c.spec.Compat, Layout: c.geometry.Layout, KeyBytes: keyBytes, TTLMillis: max(ms, 1), TimeoutMillis: max(ms, 1)}, data, wire.AppendU32s(nil, ids), body)
	if fe != nil {
		p.setReleased()
		return nil, p.leaving(fe)
	}
	return p, nil
}

func (c *Cache) newPull(ctx context.Context, op string, at attachment, ids []uint32, o transferOptions) (*Pull, func(string, time.Duration) *wire.PullRequest) {
	sp := startTransferSpan(ctx, "kvxfer.read")
	p := &Pull{vouched: c.vouched}
	p.afterAccept = p.accept
	p.endedWell = func(r TransferResult) { c.vouched.put(ids, r.Generation) }
	p.init(at.session, op, c.name, ids, c.Guarantee(), p, timeLeft(ctx, defaultTransfer), sp)
	parent, spanID := sp.parent(), sp.spanID()
	return p, func(ticket string, left time.Duration) *wire.PullRequest {
		return &wire.PullRequest{Cache: at.cache, Ticket: ticket, TimeoutMillis: max(millis(left), 1), Traceparent: parent, SpanID: spanID,
			Notification: o.note, TransferIdentity: o.identity}
	}
}

func (c *Cache) transferTerms(op string, blocks Blocks, options []TransferOption) (attachment, []uint32, transferOptions, error) {
	at, err := c.use(op)
	if err != nil {
		return at, nil, transferOptions{}, err
	}
	o, err := transferOptionsOf(op, options)
	if err != nil {
		return at, nil, o, err
	}
	ids, err := packBlocks(op, blocks, c.spec.NumBlocks)
	return at, ids, o, err
}
