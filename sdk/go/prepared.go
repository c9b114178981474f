package kvxfer

import (
	"context"
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Lasting is how long a prepared transfer lasts from its making to its end, 1 ms to 24 h, whatever the deadline of
// the context that it is made under. It is an option of the Prepare calls alone.
func Lasting(d time.Duration) TransferOption {
	return func(o *transferOptions) { o.lasting, o.lasts = d, true }
}

// Prepared is a transfer whose list of blocks or ranges is planned and bound once, and then moved as often as [Prepared.Run]
// or [Prepared.Post] says, from [Cache.PrepareWrite], [Cache.PrepareRead], [Region.PrepareWrite] and [Region.PrepareRead].
//
// To the peer it is one transfer: it claims the lease, or a use of the advertisement, and its end is told once. Finish ends it
// well, behind at least one post that did: blocks that were written are COMMITTED then, and what was read counts only
// from then on, since the source says there that it held its memory throughout. A post that fails ends it, with Done closed and
// Err set: prepare again, for blocks under a new lease. It also ends by its time, with the lease, and when the node drains.
//
// Its memory is HELD from the beginning to its release, not only while a post runs; between posts the own bytes of a write may
// be changed. Posts may overlap, and nothing orders the bytes of two.
//
// Its methods may be called from any goroutine.
type Prepared struct {
	transfer
	poster *poster
	bound  chan struct{} // closed: event is there
	event  wire.PreparedEvent
	spins  bool // a post is over so soon that looking for its end is quicker than sleeping

	vouched *vouched // of a read of blocks
}

// PrepareWrite prepares writes of own blocks to the lease that the ticket names, in the order of both lists. It returns when the
// lease is bound and posts may begin. ctx bounds the call, and its deadline is the whole's as for [Cache.Write], unless [Lasting] says
// another. Of the options neither [Layerwise] nor [Notify] has a meaning here: the notification is Finish's.
//
// Errors: those of Cache.Write, and those that its push ends with before a byte moves (PeerUnreachable, TicketBound, ...);
// FeatureRequired, the daemon is older and does not know prepared transfers.
func (c *Cache) PrepareWrite(ctx context.Context, blocks Blocks, ticket string, options ...TransferOption) (*Prepared, error) {
	return c.prepare(ctx, ModeWrite, blocks, ticket, options)
}

// PrepareRead is PrepareWrite for reading the blocks of a read lease into own ones. What the own blocks held is given up with
// the call; they are COMMITTED when Finish has succeeded.
func (c *Cache) PrepareRead(ctx context.Context, blocks Blocks, ticket string, options ...TransferOption) (*Prepared, error) {
	return c.prepare(ctx, ModeRead, blocks, ticket, options)
}

// PrepareWrite prepares writes of ranges of the region to an advertised one; there must be at least one. All else is as for
// [Cache.PrepareWrite].
func (r *Region) PrepareWrite(ctx context.Context, ranges []Range, ticket string, options ...TransferOption) (*Prepared, error) {
	return r.prepare(ctx, ModeWrite, ranges, ticket, options)
}

// PrepareRead is PrepareWrite for reading ranges of an advertised region into ranges of this one.
func (r *Region) PrepareRead(ctx context.Context, ranges []Range, ticket string, options ...TransferOption) (*Prepared, error) {
	return r.prepare(ctx, ModeRead, ranges, ticket, options)
}

const opPrepare = "prepare"

func (c *Cache) prepare(ctx context.Context, mode Mode, blocks Blocks, ticket string, options []TransferOption) (*Prepared, error) {
	at, ids, o, err := c.transferTerms(opPrepare, blocks, options)
	if err != nil {
		return nil, err
	}
	p, name := &Prepared{}, "kvxfer.write"
	var taken []wire.Vouch
	if mode == ModeRead {
		p.vouched, name = c.vouched, "kvxfer.read"
		p.endedWell = func(r TransferResult) { c.vouched.put(ids, r.Generation) }
	}
	before := func() { // before the daemon hears of it: from its answer on bytes may land
		if p.vouched != nil {
			taken = p.vouched.take(ids)
		}
	}
	fe := p.begin(ctx, &c.registered, at, startTransferSpan(ctx, name), ids, o, before, wire.Prepare{Cache: at.cache, Mode: string(mode), Ticket: ticket}, wire.AppendU32s(nil, ids))
	if fe != nil {
		if p.vouched != nil && !p.hasBegun() && refused(fe) { // nothing was changed
			p.vouched.restore(taken)
		}
		return nil, p.leaving(fe)
	}
	return p, nil
}

func (r *Region) prepare(ctx context.Context, mode Mode, ranges []Range, ticket string, options []TransferOption) (*Prepared, error) {
	at, err := r.use(opPrepare)
	if err != nil {
		return nil, err
	}
	o, err := transferOptionsOf(opPrepare, options)
	if err != nil {
		return nil, err
	}
	if len(ranges) == 0 {
		return nil, invalid(opPrepare, "ranges", "none, allowed at least 1")
	}
	packed, err := packRanges(opPrepare, ranges, r.size)
	if err != nil {
		return nil, err
	}
	p := &Prepared{}
	fe := p.begin(ctx, &r.registered, at, startTransferSpan(ctx, "kvxfer.scatter"), nil, o, func() {}, wire.Prepare{Region: at.region, Mode: string(mode), Ticket: ticket}, packed)
	if fe != nil {
		return nil, p.leaving(fe)
	}
	return p, nil
}

// begin asks the daemon and waits until posts may begin.
func (p *Prepared) begin(ctx context.Context, r *registered, at attachment, sp *span, ids []uint32, o transferOptions, before func(), body wire.Prepare, packed []byte) *fault.Error {
	timeout := timeLeft(ctx, defaultTransfer)
	if o.lasts {
		timeout = o.lasting
	}
	p.bound = make(chan struct{})
	p.init(at.session, opPrepare, r.name, ids, r.Guarantee(), p, timeout, sp)
	if p.vouched != nil {
		p.afterAccept = func() { p.vouched.take(p.ids) } // again: a lease of these blocks may have been committed meanwhile
	}
	refuse := func(fe *fault.Error) *fault.Error {
		p.setReleased()
		p.endRefused(fe)
		return fe
	}
	switch {
	case o.layerwise:
		return refuse(fault.Invalid(opPrepare, "layerwise", "true, allowed is false: each post moves the whole list"))
	case len(o.note) > 0:
		return refuse(fault.Invalid(opPrepare, "notification", "%d bytes, allowed is Finish's", len(o.note)))
	case timeout < time.Millisecond || timeout > maxDuration:
		return refuse(fault.Invalid(opPrepare, "lasting", "%s, allowed 1ms..24h", timeout))
	}
	ask, cancel := context.WithTimeout(ctx, r.client.timeout)
	defer cancel()
	var fe *fault.Error
	if p.poster, fe = at.session.posting(ask); fe != nil {
		return refuse(again(fe, opPrepare))
	}
	body.TimeoutMillis, body.Traceparent, body.SpanID, body.TransferIdentity = millis(timeout), sp.parent(), sp.spanID(), o.identity
	before()
	if fe := p.start(ask, request{op: opPrepare, kind: wire.KindPrepare, data: packed, body: &body}, p, p.Cancel); fe != nil {
		return fe
	}
	select {
	case <-p.bound:
	case <-p.done:
		select { // it may have been both
		case <-p.bound:
		default:
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.err
		}
	case <-ctx.Done():
		p.Cancel()
		fe := contextEnded(ctx, opPrepare, "the peer has not granted it in time")
		fe.MayHaveWritten = p.vouched != nil // what the own blocks held is given up
		return fe
	}
	const quick = uint64(lookFor / time.Microsecond * bytesAMicrosecond)
	p.spins = p.event.Bytes <= quick
	return nil
}

func (p *Prepared) hasBegun() bool {
	p.tmu.Lock()
	defer p.tmu.Unlock()
	return p.begun
}

// onPrepared runs in the connection's reader.
func (p *Prepared) onPrepared(e *wire.PreparedEvent) {
	select {
	case <-p.bound: // told twice
	default:
		p.event = *e
		close(p.bound)
	}
}

// Provider is what moves the bytes, and ProviderReason why it was chosen.
func (p *Prepared) Provider() string { return p.event.Provider }

// ProviderReason is why the provider was chosen.
func (p *Prepared) ProviderReason() string { return p.event.Reason }

// Bytes are those of one post.
func (p *Prepared) Bytes() uint64 { return p.event.Bytes }

// Operations are the provider's operations of one post.
func (p *Prepared) Operations() int { return int(p.event.Operations) }

// Way says how posts reach the daemon: "ring", through memory that both share, without a system call while both are awake; or
// "socket", and then why: the daemon's or the hardware's reason, or WithoutRing.
func (p *Prepared) Way() (way, why string) {
	if p.poster.ring != nil {
		return "ring", ""
	}
	return "socket", p.poster.why
}

// Finish ends the transfer well, with up to 64 KiB for the other side's owner, and waits for its end as Wait does. Posts that have not
// ended are waited for. Cancelled: no post has ended well. A later call only waits.
func (p *Prepared) Finish(ctx context.Context, notification []byte) (TransferResult, error) {
	if err := checkNotification("finish", notification); err != nil {
		return TransferResult{}, err
	}
	if !p.isOver() {
		fe := p.sess.conn.notify(wire.KindPushFinish, &wire.PushFinish{Transfer: p.number}, slices.Clone(notification))
		if fe != nil && p.sess.conn.alive() {
			return TransferResult{}, p.leaving(again(fe, "finish"))
		}
	}
	return p.Wait(ctx)
}

// Cancel ends the transfer early, with Cancelled, or well if it was finished already. It returns at once; the memory may stay
// HELD until WhenReleased.
func (p *Prepared) Cancel() { p.cancel() }

// Close cancels the transfer unless it has ended, and waits until its memory is reusable: DeadlineExceeded (Released false)
// where that takes more than 10 seconds.
func (p *Prepared) Close() error {
	p.cancel()
	ctx, cancel := context.WithTimeout(context.Background(), fenceTimeout)
	defer cancel()
	return p.WaitReleased(ctx)
}
