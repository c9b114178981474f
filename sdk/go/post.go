package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// PostResult is how a post ended well: every byte of the list is placed and visible at its destination.
type PostResult struct {
	Bytes uint64
	Took  time.Duration // on the daemon's clock, from its seeing the post to its end
}

// Post is one run of a prepared transfer's list, from [Prepared.Post]. It has to be waited for: at most 256 posts of a client are
// out at a time, and one that has ended counts until its Wait. It is a value, which may be copied; its methods may be called
// from any goroutine.
type Post struct {
	p       *Prepared
	i, turn uint32
}

const opPost = "post"

// Run moves the list once and waits until every byte is placed and visible at its destination, by the shortest way that there
// is. It allocates nothing. ctx's deadline is the post's time-out, which is otherwise the transfer's end; a post that is late
// fails. The cancellation of ctx ends the waiting alone: the post goes on, and its memory is HELD, so Cancel the transfer then.
//
// Errors: what the transfer has ended with, where the post failed (MayHaveWritten: bytes of the destination may have been
// changed); DeadlineExceeded, also where the daemon does not answer (Released false); Cancelled; DaemonUnavailable, the
// daemon is lost.
func (p *Prepared) Run(ctx context.Context) (PostResult, error) {
	x, err := p.post(ctx, true)
	if err != nil {
		return PostResult{}, err
	}
	r, err := x.wait(ctx, true)
	if err != nil && ctx.Err() != nil {
		x.forget()
	}
	return r, err
}

// Post begins to move the list once and does not wait. ctx's deadline is as for Run; nothing else of it counts.
//
// Errors: what the transfer has ended with; ResourceExhausted, 256 posts of the client are out: wait for one.
func (p *Prepared) Post(ctx context.Context) (Post, error) { return p.post(ctx, false) }

func (p *Prepared) post(ctx context.Context, waits bool) (Post, error) {
	o := p.poster
	if p.isOver() {
		if err := p.Err(); err != nil {
			return Post{}, err
		}
		return Post{}, p.leaving(fault.New(fault.Closed, opPost, "the transfer was finished"))
	}
	for waited := false; ; waited = true {
		now := time.Now()
		until := p.until
		if at, ok := ctx.Deadline(); ok && at.Before(until) {
			until = at
		}
		if !now.Before(until) || ctx.Err() != nil && waits {
			if ctx.Err() != nil {
				return Post{}, p.leaving(contextEnded(ctx, opPost, "the context had ended before the call"))
			}
			return Post{}, p.leaving(fault.New(fault.DeadlineExceeded, opPost, "the deadline had passed before the call"))
		}
		i, turn, full, fe := o.post(p, now, until)
		if waited && !full {
			o.passOn()
		}
		if fe != nil {
			return Post{}, p.leaving(again(fe, opPost))
		}
		if !full {
			return Post{p, i, turn}, nil
		}
		if !waits {
			e := fault.New(fault.ResourceExhausted, opPost, "%d posts of the client are out, allowed at most %d", postEntries, postEntries)
			e.Field = "posts"
			return Post{}, p.leaving(e)
		}
		timer := time.NewTimer(min(until.Sub(now), glance)) // nobody looks at the ring for posts that were given up
		select {
		case <-o.vacant:
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Done says whether Wait would return at once. It looks, and never waits.
func (x Post) Done() bool {
	o := x.p.poster
	s := &o.slots[x.i]
	o.mu.Lock()
	defer o.mu.Unlock()
	o.drain()
	return !s.is(x.turn, slotOut)
}

// Wait returns how the post ended, once: a later call is InvalidArgument. The end of ctx ends only the waiting, with DeadlineExceeded or
// Cancelled; Wait may be called again then. Errors are those of [Prepared.Run].
func (x Post) Wait(ctx context.Context) (PostResult, error) { return x.wait(ctx, false) }

// wait is Wait; of Run, ctx's deadline is the post's, which the daemon may still have to tell.
func (x Post) wait(ctx context.Context, run bool) (PostResult, error) {
	o, p := x.p.poster, x.p
	s := &o.slots[x.i]
	o.wait(ctx, x, run)
	o.mu.Lock()
	if s.turn != x.turn {
		o.mu.Unlock()
		return PostResult{}, invalid(opPost, "post", "waited for before, allowed is once")
	}
	if s.is(x.turn, slotOut) {
		late := !time.Now().Before(s.until.Add(grace))
		o.mu.Unlock()
		fe := contextEndedOr(ctx, "still pending when the wait ended")
		if late {
			x.forget()
			p.Cancel()
			fe = fault.New(fault.DeadlineExceeded, opPost, "the deadline has passed and the daemon has not said how the post ended")
		}
		fe.MayHaveWritten = true
		return PostResult{}, p.leaving(fe)
	}
	posted, lost := s.posted, s.lost
	o.release(x.i)
	o.mu.Unlock()
	if posted.Code == 0 && !lost {
		return PostResult{Bytes: posted.Bytes, Took: time.Duration(posted.Nanos)}, nil
	}
	if lost {
		fe := again(o.over, opPost)
		fe.MayHaveWritten = true
		return PostResult{}, p.leaving(fe)
	}
	return PostResult{}, p.failed(ctx, fault.Code(posted.Code), posted.Flags)
}

// contextEndedOr is the error of a wait that ended without an end.
func contextEndedOr(ctx context.Context, detail string) *fault.Error {
	if ctx.Err() != nil {
		return contextEnded(ctx, opPost, detail)
	}
	return fault.New(fault.DeadlineExceeded, opPost, "%s", detail)
}

// failed is the error of a post that the daemon ended with code: the transfer's own, which follows and says more.
func (p *Prepared) failed(ctx context.Context, code fault.Code, flags uint32) error {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-ctx.Done():
	case <-timer.C:
	}
	p.mu.Lock()
	fe := p.err
	p.mu.Unlock()
	if fe == nil {
		fe = fault.From(opPost, fault.FromWire(&fault.Wire{Code: code, Retryable: code.Retryable()}))
	}
	fe = again(fe, opPost)
	fe.MayHaveWritten = fe.MayHaveWritten || flags&wire.PostedWrote != 0
	return p.leaving(fe)
}

// forget says that nobody will ask for the end.
func (x Post) forget() {
	o := x.p.poster
	o.mu.Lock()
	defer o.mu.Unlock()
	s := &o.slots[x.i]
	switch {
	case s.turn != x.turn:
	case s.is(x.turn, slotEnded):
		o.release(x.i)
	default:
		s.left = true
	}
}
