package simtest_test

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/protocol"
	"github.com/kvxfer/kvxfer/xfer/simtest"
)

// pulling is a read lease and the pulls under it.
type pulling struct {
	l       *simtest.Lease
	pulls   []*simtest.Transfer
	notes   []string
	readers int
	quiet   bool
}

func (x *pulling) hush(quiet bool) { x.quiet = x.quiet && quiet }

// beginPull writes down the life of an offer: pulls to it, perhaps one too many, and what ends them.
func (h *history) beginPull(src, dst *simtest.Client, from []uint32, take func() []uint32, acts *[]action) *pulling {
	x := &pulling{readers: 1 + h.rng.IntN(3), quiet: true}
	ttl, start := h.times(), h.some(span/2)
	x.quiet = ttl == time.Minute
	add := func(at time.Duration, on *simtest.Node, do func()) { *acts = append(*acts, action{at, on, do}) }
	add(start, src.Node, func() {
		var err error
		if x.l, err = src.Offer(ttl, uint32(x.readers), from...); err != nil {
			h.refused(err)
		}
	})
	offered := func(f func()) func() {
		return func() {
			if x.l != nil {
				f()
			}
		}
	}
	pulls := x.readers
	switch h.rng.IntN(6) {
	case 0: // one of them finds no use left
		pulls++
	case 1: // the last use is never taken, so the lease's time ends it
		pulls--
	}
	x.quiet = x.quiet && pulls == x.readers
	x.pulls, x.notes = make([]*simtest.Transfer, pulls), make([]string, pulls)
	for i := range pulls {
		to, timeout, at := take(), h.times(), start+h.some(span/4)
		if to == nil { // no blocks are left for it in this round
			x.quiet = false
			continue
		}
		x.quiet = x.quiet && timeout == time.Minute
		if x.notes[i] = fmt.Sprintf("pull %d", i); h.rng.IntN(4) == 0 {
			x.notes[i] = ""
		}
		add(at, dst.Node, offered(func() {
			var err error
			if x.pulls[i], err = dst.Pull(x.l.Ticket, timeout, []byte(x.notes[i]), to...); err != nil {
				h.refused(err)
			}
		}))
		if h.rng.IntN(8) == 0 {
			x.quiet = false
			add(at+h.some(30*time.Millisecond), dst.Node, func() {
				if x.pulls[i] != nil {
					x.pulls[i].Cancel()
				}
			})
		}
	}
	add(start+h.some(span/4), src.Node, offered(func() { h.isHeld(x) }))
	switch h.rng.IntN(6) {
	case 0:
		x.quiet = false
		add(start+h.some(span/4), src.Node, offered(func() { _ = x.l.Revoke() })) // Closed where the client is gone, which ends it too
	case 1:
		x.quiet = false
		add(start+h.some(span/4), src.Node, offered(func() { h.evict(src, from[:1]) }))
	case 2:
		x.quiet = false
		for range 1 + h.rng.IntN(2) {
			ttl := h.times()
			add(start+h.some(span/2), src.Node, offered(func() { h.renewal(x.l.Renew(ttl)) }))
		}
	}
	return x
}

// isHeld tries to take a block of a living read lease for writing.
func (h *history) isHeld(x *pulling) {
	alive := func() (yes bool) {
		x.l.Client.Locked(func() { yes = x.l.Ends == 0 && time.Now().Before(x.l.Deadline) })
		return yes && !x.l.Client.Dropped() && !x.l.Client.Unmapped()
	}
	if !alive() {
		return
	}
	l, err := x.l.Client.Lease(time.Second, x.l.Blocks[0])
	if fault.CodeOf(err) == fault.Closed { // its client's end has begun
		return
	}
	require.Equal(h.t, fault.BlocksBusy, fault.CodeOf(err), "a block under a read lease was leased for writing: %+v", l)
	require.True(h.t, alive())
}

// evict takes blocks back; one that an own transfer holds is refused.
func (h *history) evict(c *simtest.Client, blocks []uint32) {
	if err := c.Evict(blocks...); err != nil {
		require.Contains(h.t, []fault.Code{fault.Closed, fault.NotFound, fault.BlocksBusy}, fault.CodeOf(err), "%v", err)
	}
}

// renewal looks at the answer of one: what is over refuses it by how it ended.
func (h *history) renewal(err error) {
	if err == nil {
		h.renewals++
		return
	}
	require.Contains(h.t, []fault.Code{fault.Closed, fault.NotFound, fault.LeaseExpired, fault.LeaseRevoked, fault.DeadlineExceeded, fault.Cancelled,
		fault.PeerLost, fault.ClientGone}, fault.CodeOf(err), "%v", err)
}

// ended looks at both ends of every pull.
func (x *pulling) ended(h *history) {
	if x.l == nil {
		return
	}
	l := x.l
	lost := l.Client.Lost() && l.Ends == 0
	if !lost {
		require.Equal(h.t, 1, l.Ends, "events that ended a read lease")
		h.inTime(l.EndedAt, l.Deadline.Add(slack))
		require.LessOrEqual(h.t, len(l.Holders), x.readers, "more readers than it says")
	}
	good := 0
	for i, p := range x.pulls {
		if p == nil || p.Client.Lost() && p.Ends*p.Released == 0 {
			continue
		}
		h.transfers++
		require.Equal(h.t, 1, p.Ends, "events that ended a pull")
		require.Equal(h.t, 1, p.Released, "times that a pull's blocks were given back")
		h.inTime(p.EndedAt, p.Deadline.Add(time.Duration(protocol.ReleaseGrace)))
		h.inTime(p.ReleasedAt, p.Deadline.Add(time.Duration(protocol.ReleaseGrace)))
		require.False(h.t, x.quiet && p.End.Error != nil, "an undisturbed pull ended with %+v", p.End.Error)
		h.holder(l.Client.Lost(), l.Holders, p.Name, x.notes[i], p.End.Error)
		if p.End.Error == nil {
			good++
			h.ends["pulled"]++
			require.Equal(h.t, uint64(len(p.Blocks))*simtest.Small.BlockBytes(), p.End.Bytes)
			continue
		}
		h.ends["pull: "+p.End.Error.Name]++
		h.readerError(p.End.Error)
	}
	if !lost && good > 0 && l.End.Error != nil {
		require.Contains(h.t, []fault.Code{fault.LeaseRevoked, fault.LeaseExpired, fault.ClientGone}, l.End.Error.Code, "%+v", l.End.Error)
	}
	require.False(h.t, x.quiet && l.End.Error != nil, "an undisturbed read lease ended with %+v", l.End.Error)
}

// holder compares a reader's or writer's end with what the owner heard of it as a holder.
func (h *history) holder(lost bool, all []simtest.Holder, transfer, note string, end *fault.Wire) {
	h.t.Helper()
	for _, x := range all {
		if x.Event.TransferID != transfer {
			continue
		}
		if end == nil {
			require.Nil(h.t, x.Event.Error, "it ended well at one end only: %+v", x.Event.Error)
		}
		if x.Event.Error == nil {
			require.Equal(h.t, note, string(x.Note))
		}
		return
	}
	require.True(h.t, lost || end != nil, "the owner heard nothing of a transfer that ended well")
}

func (h *history) readerError(e *fault.Wire) {
	h.t.Helper()
	require.Contains(h.t, []fault.Code{fault.Cancelled, fault.LeaseRevoked, fault.LeaseExpired, fault.DeadlineExceeded, fault.PeerLost, fault.ClientGone,
		fault.PeerUnreachable, fault.StaleEpoch, fault.StaleKey, fault.TicketInvalid, fault.TicketBound}, e.Code, "%+v", e)
}
