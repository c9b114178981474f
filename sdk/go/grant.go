package kvxfer

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Mode is what a peer may do under a lease or an advertisement.
type Mode string

// The modes.
const (
	ModeWrite Mode = wire.ModeWrite
	ModeRead  Mode = wire.ModeRead
)

// grant is permission on own memory that peers hold: what leases of either mode and advertisements have in common.
type grant[T any] struct {
	held[T]
	number      uint64
	ticket      string
	leaseID     string
	traceparent string

	gmu        sync.Mutex // of everything below
	transferID string
	revokeSent bool
	fences     []chan *fault.Error // of callers that wait for the fence; each has room for one word
	confirmed  time.Time           // the end by the daemon's last word; zero: none of its own
	extended   time.Time           // until when the answer to a renewal is awaited
	renewals   int                 // not answered yet
}

// granted is the daemon's answer to a request for permission, or its word that another process got one. ttl 0: the
// permission has no time of its own.
type granted struct {
	wire.LeaseInfo
	ttl time.Duration
}

func (g *grant[T]) init(s *session, op string, info granted, place string, ids []uint32, guarantee string, self Ended, sp *span) {
	g.held.init(s, op, place, ids, guarantee, self, sp)
	g.number, g.ticket, g.leaseID = info.Lease, info.Ticket, info.LeaseID
	if sp != nil {
		g.traceparent = sp.traceparent()
	}
	if info.ttl > 0 {
		g.confirmed = time.Now().Add(info.ttl + grace)
		g.moveDeadline()
	}
}

// Ticket is the capability that the other side needs: a string that needs no escaping in JSON. It is a secret, never log it.
func (g *grant[T]) Ticket() string { return g.ticket }

// ID is the lease's name in traces and logs, 32 hex digits; of an instance's lease the same on every rank.
func (g *grant[T]) ID() string { return g.leaseID }

// Traceparent is the W3C context of the call's span; the transfers belong to its trace. "" where there is none.
func (g *grant[T]) Traceparent() string { return g.traceparent }

// TransferID is the id of the transfer that it was for, 32 hex digits; "" until it has ended, and for several.
func (g *grant[T]) TransferID() string {
	g.gmu.Lock()
	defer g.gmu.Unlock()
	return g.transferID
}

// Revoke takes the permission back and returns when the memory is fenced: after nil no byte of it can land any more. It
// returns nil too when it had ended well before, and Wait says which it was. DeadlineExceeded (Released false) when
// there is no fence before ctx ends, 10 seconds where it has no deadline: it goes on, see WaitReleased.
func (g *grant[T]) Revoke(ctx context.Context) error {
	op := g.op + ".revoke"
	ctx, cancel := bounded(ctx, fenceTimeout)
	defer cancel()
	unfenced := make(chan *fault.Error, 1)
	// Before anything is sent: whoever ends it finds the waiter in the list or has said so already.
	g.gmu.Lock()
	g.fences = append(g.fences, unfenced)
	g.gmu.Unlock()
	defer func() {
		g.gmu.Lock()
		defer g.gmu.Unlock()
		if i := slices.Index(g.fences, unfenced); i >= 0 {
			g.fences = slices.Delete(g.fences, i, i+1)
		}
	}()
	if g.Released() {
		return nil
	}
	if fe := g.sess.conn.lostError(); fe != nil {
		return g.leaving(again(fe, op))
	}
	g.sendRevoke()
	select {
	case <-g.freed:
		return nil
	case fe := <-unfenced:
		return g.leaving(again(fe, op))
	case <-ctx.Done():
		return g.leaving(contextEnded(ctx, op, "not fenced yet: the memory is HELD"))
	}
}

// Close revokes it, for defer: after nil it has ended and is fenced. It waits 10 seconds at most.
func (g *grant[T]) Close() error {
	if g.isOver() && g.Released() {
		return nil
	}
	return g.Revoke(context.Background())
}

// Renew lets it last ttl from now, on the daemon's clock; that may also bring the end forward. The error is the reason where
// the end was reached or decided before (LeaseExpired, LeaseRevoked, NotFound after a good end), or DeadlineExceeded when
// there is no answer before ctx ends, 5 seconds where it has no deadline: the end that was agreed before counts then. A
// transfer's own time-out holds besides.
func (g *grant[T]) Renew(ctx context.Context, ttl time.Duration) error {
	op := g.op + ".renew"
	if ttl == 0 {
		return invalid(op, "ttl", "0, allowed 1ms..24h")
	}
	ttl, err := checkTTL(op, ttl, 0)
	if err != nil {
		return err
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	if g.isOver() {
		g.mu.Lock()
		fe := g.err
		g.mu.Unlock()
		if fe == nil {
			fe = fault.New(fault.NotFound, op, "it has ended")
		}
		return g.leaving(again(fe, op))
	}
	answer := make(chan *fault.Error, 1)
	answered := func(fe *fault.Error) {
		g.gmu.Lock()
		if g.renewals--; g.renewals == 0 {
			g.extended = time.Time{}
		}
		if fe == nil && !g.confirmed.IsZero() {
			g.confirmed = time.Now().Add(ttl + grace)
		}
		g.gmu.Unlock()
		g.moveDeadline()
		answer <- fe
	}
	g.gmu.Lock()
	g.renewals++
	// Only the first that is not answered extends: a caller who goes on renewing at a daemon that has stopped must hear of it.
	// Nor by more than it asks for: the context may end in an hour.
	if at, ok := ctx.Deadline(); ok && g.renewals == 1 {
		if most := time.Now().Add(ttl); at.After(most) {
			at = most
		}
		g.extended = at.Add(grace)
	}
	g.gmu.Unlock()
	g.moveDeadline()
	if fe := g.sess.conn.requestLater(request{op: op, kind: wire.KindRenew, body: &wire.Renew{Lease: g.number, TTLMillis: millis(ttl)}, onDone: answered}); fe != nil {
		answered(fe)
	}
	select {
	case fe := <-answer:
		if fe == nil {
			return nil
		}
		return g.leaving(again(fe, op))
	case <-ctx.Done():
		return g.leaving(contextEnded(ctx, op, "the daemon did not answer in time"))
	}
}

// For the session.

func (g *grant[T]) onLayers([]uint32) error            { return nil }
func (g *grant[T]) onHolder(*wire.HolderEvent, []byte) {}

// exitFences: it does wherever the memory is this process's own.
func (g *grant[T]) exitFences() bool { return g.place != "" }

// over ends it by the daemon's word; false when the memory is HELD all the same. well makes the result of a good end.
func (g *grant[T]) over(e *wire.LeaseEvent, well func() T) bool {
	g.gmu.Lock()
	g.transferID = e.TransferID
	g.gmu.Unlock()
	if e.Error == nil {
		v := well()
		g.setReleased()
		g.finish(v)
	} else {
		fe := fault.From(g.op, fault.FromWire(e.Error))
		if fe.Op == "" {
			fe.Op = g.op
		}
		// Internal says that the fence failed: only the exit of the daemon's process is one.
		if fe.Code == fault.Internal {
			g.fail(fe)
			g.failFences(fe)
			return false
		}
		g.setReleased()
		g.fail(fe)
	}
	g.tellReleased()
	return true
}

func (g *grant[T]) onLost(fe *fault.Error) {
	g.held.onLost(fe)
	g.failFences(fe)
}

func (g *grant[T]) onFenced() {
	g.fail(&fault.Error{Code: fault.LeaseRevoked, Op: g.op, Detail: "its memory was given back", MayHaveWritten: true})
	g.setReleased()
	g.tellReleased()
}

func (g *grant[T]) failFences(fe *fault.Error) {
	g.gmu.Lock()
	defer g.gmu.Unlock()
	for _, f := range g.fences {
		select {
		case f <- fe:
		default:
		}
	}
}

// Time.

func (g *grant[T]) moveDeadline() {
	g.gmu.Lock()
	at := g.confirmed
	if !at.IsZero() && g.extended.After(at) {
		at = g.extended
	}
	g.gmu.Unlock()
	if !at.IsZero() {
		g.endAt(at, g.expire)
	}
}

func (g *grant[T]) expire() {
	g.mu.Lock()
	early := time.Now().Before(g.deadline)
	g.mu.Unlock()
	if early { // the deadline moved while the timer was about to fire, and it was set again then
		return
	}
	g.fail(&fault.Error{Code: fault.DeadlineExceeded, Op: g.op, Detail: "its time is over and the daemon has not said that it is fenced", MayHaveWritten: true})
	if !g.Released() {
		g.sendRevoke()
	}
}

// discard: the caller has gone before this answer came, nobody has the ticket.
func (g *grant[T]) discard() {
	g.mu.Lock()
	g.quiet = true
	g.mu.Unlock()
	g.sendRevoke()
}

func (g *grant[T]) sendRevoke() {
	g.gmu.Lock()
	sent := g.revokeSent
	g.revokeSent = true
	g.gmu.Unlock()
	if sent {
		return
	}
	if fe := g.sess.conn.requestLater(request{op: g.op + ".revoke", kind: wire.KindRevoke, body: &wire.Revoke{Lease: g.number}, onDone: g.revokeAnswered}); fe != nil {
		g.revokeAnswered(fe)
	}
}

func (g *grant[T]) revokeAnswered(fe *fault.Error) {
	if fe == nil || g.Released() {
		return
	}
	g.gmu.Lock()
	g.revokeSent = false
	g.gmu.Unlock()
	g.failFences(fe)
}

func (g *grant[T]) describeGrant(sp *span) {
	if g.leaseID != "" {
		sp.set("kvxfer.lease.id", g.leaseID)
	}
	g.gmu.Lock()
	id := g.transferID
	g.gmu.Unlock()
	if id != "" {
		sp.set("kvxfer.transfer.id", id)
	}
}

// askGrant asks the daemon for permission. made makes the handle of its answer, in the connection's reader, and returns
// what to do where the caller has gone meanwhile.
func askGrant(ctx context.Context, s *session, r request, ttl time.Duration, sp *span, made func(granted) (grantHandle, func())) (fe *fault.Error, over bool) {
	var discard func()
	r.onOK = func(f *wire.Frame) error {
		g := granted{ttl: ttl}
		if err := f.Decode(&g.LeaseInfo); err != nil {
			return err
		}
		if g.Ticket == "" {
			return violated("ticket", "absent")
		}
		var h grantHandle
		h, discard = made(g)
		s.addLease(g.Lease, h)
		return nil
	}
	r.onLate = func() { discard() }
	if fe, over = s.conn.request(ctx, r); fe != nil {
		sp.set("kvxfer.result", fe.Code.String())
		s.endSpan(sp, fe)
	}
	return fe, over
}
