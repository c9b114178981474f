package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

type offerRun struct {
	o   *protocol.Offer
	now rdma.Instant
}

func (r *offerRun) step(e protocol.OfferEvent) []protocol.OfferEffect {
	e.Now = r.now
	return r.o.Step(nil, e)
}

func offerKinds(effects []protocol.OfferEffect) (out []protocol.OfferEffectKind) {
	for _, f := range effects {
		out = append(out, f.Kind)
	}
	return out
}

func (r *offerRun) bind(t *testing.T, holder uint64, deadline rdma.Instant) {
	t.Helper()
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferOpenWindow}, offerKinds(r.step(protocol.OfferEvent{Kind: protocol.OfferBind, Holder: holder, Deadline: deadline})))
}

func TestOfferCountsUses(t *testing.T) {
	r := &offerRun{o: protocol.NewOffer(rdma.AccessRead, 2, 100)}
	r.bind(t, 1, 50)
	r.bind(t, 2, 500)
	third := r.step(protocol.OfferEvent{Kind: protocol.OfferBind, Holder: 3, Deadline: 50})
	require.Equal(t, []protocol.OfferEffect{{Kind: protocol.OfferRefuse, Holder: 3, Code: fault.TicketBound}}, third)
	for _, h := range []uint64{1, 2} {
		require.Equal(t, protocol.OfferOpen, r.o.Phase())
		require.Equal(t, []protocol.OfferEffectKind{protocol.OfferFence}, offerKinds(r.step(protocol.OfferEvent{Kind: protocol.OfferRelease, Holder: h, Bytes: 8})))
		end := r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: h, OK: true})
		require.Equal(t, protocol.OfferEffect{Kind: protocol.OfferHolderEnded, Holder: h, Bytes: 8}, end[0])
	}
	assert.Equal(t, protocol.OfferEnded, r.o.Phase())
	assert.Zero(t, r.o.Outcome())
	assert.EqualValues(t, 16, r.o.Bytes())
}

func TestOfferWithoutAGoodHolderSaysWhy(t *testing.T) {
	r := &offerRun{o: protocol.NewOffer(rdma.AccessRead, 1, 100)}
	r.bind(t, 1, 50)
	r.step(protocol.OfferEvent{Kind: protocol.OfferAbort, Holder: 1, Code: fault.Cancelled})
	r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 1, OK: true})
	assert.Equal(t, protocol.OfferEnded, r.o.Phase())
	assert.Equal(t, fault.Cancelled, r.o.Outcome())
}

func TestReleaseIsTheValidation(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(r *offerRun)
		want  fault.Code
	}{
		{"held", func(*offerRun) {}, 0},
		{"revoked before", func(r *offerRun) { r.step(protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: fault.LeaseRevoked}) }, fault.LeaseRevoked},
		{"time over, no timer fired", func(r *offerRun) { r.now = 100 }, fault.LeaseExpired},
		{"its own time over", func(r *offerRun) { r.now = 60 }, fault.DeadlineExceeded},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := &offerRun{o: protocol.NewOffer(rdma.AccessRead, 0, 100)}
			r.bind(t, 7, 60)
			c.spoil(r)
			r.step(protocol.OfferEvent{Kind: protocol.OfferRelease, Holder: 7, Bytes: 1})
			end := r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 7, OK: true})
			require.NotEmpty(t, end)
			assert.Equal(t, protocol.OfferHolderEnded, end[0].Kind)
			assert.Equal(t, c.want, end[0].Code)
		})
	}
}

func TestOfferEndsBehindItsFences(t *testing.T) {
	r := &offerRun{o: protocol.NewOffer(rdma.AccessWrite, 0, 100)}
	r.bind(t, 1, 500)
	r.bind(t, 2, 500)
	out := r.step(protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: fault.LeaseRevoked})
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferFence, protocol.OfferFence}, offerKinds(out))
	refused := r.step(protocol.OfferEvent{Kind: protocol.OfferBind, Holder: 3, Deadline: 500})
	require.Equal(t, fault.LeaseRevoked, refused[0].Code)
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferHolderEnded}, offerKinds(r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 2, OK: true})))
	require.Equal(t, protocol.OfferEnding, r.o.Phase())
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferHolderEnded, protocol.OfferEnd}, offerKinds(r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 1, OK: true})))
}

func TestOfferFailedFenceQuarantines(t *testing.T) {
	r := &offerRun{o: protocol.NewOffer(rdma.AccessWrite, 0, 100)}
	r.bind(t, 1, 500)
	r.bind(t, 2, 500)
	r.step(protocol.OfferEvent{Kind: protocol.OfferAbort, Holder: 1, Code: fault.Cancelled})
	out := r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 1})
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferFence, protocol.OfferHolderEnded}, offerKinds(out), "the other holder is fenced too")
	out = r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 2, OK: true})
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferHolderEnded, protocol.OfferQuarantine}, offerKinds(out))
	assert.Equal(t, protocol.OfferQuarantined, r.o.Phase())
}

// TestOfferWindowThatCannotOpenNeedsNoFence: also where the holder's time, or the offer's, is over when that is known.
func TestOfferWindowThatCannotOpenNeedsNoFence(t *testing.T) {
	failed := protocol.OfferEvent{Kind: protocol.OfferWindowFailed, Holder: 1, Code: fault.DeadlineExceeded}
	for now, want := range map[rdma.Instant][]protocol.OfferEffectKind{1: nil, 50: nil, 100: {protocol.OfferEnd}} {
		r := &offerRun{o: protocol.NewOffer(rdma.AccessRead, 0, 100)}
		r.bind(t, 1, 50)
		r.now = now
		assert.Equal(t, want, offerKinds(r.step(failed)), "at %d", now)
		assert.Zero(t, r.o.Holders())
		assert.Empty(t, r.step(failed))
	}
	r := &offerRun{o: protocol.NewOffer(rdma.AccessRead, 1, 100)}
	r.bind(t, 1, 50)
	r.now = 100
	assert.Equal(t, []protocol.OfferEffectKind{protocol.OfferEnd}, offerKinds(r.step(failed)), "once, although its time is over too")
}

func TestRawWriteCountsOperations(t *testing.T) {
	r := &offerRun{o: protocol.NewOffer(rdma.AccessWrite, 0, 100)}
	r.bind(t, 1, 500)
	arrive := func(tag uint64) []protocol.OfferEffect {
		return r.step(protocol.OfferEvent{Kind: protocol.OfferArrival, Holder: 1, Tag: tag, Bytes: 10})
	}
	require.Empty(t, arrive(0))
	require.Empty(t, arrive(0), "placed twice, counted once")
	require.Empty(t, r.step(protocol.OfferEvent{Kind: protocol.OfferFin, Holder: 1, Pieces: 2}))
	require.Equal(t, []protocol.OfferEffectKind{protocol.OfferFence}, offerKinds(arrive(1)))
	out := r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: 1, OK: true})
	assert.Equal(t, []protocol.OfferEffect{{Kind: protocol.OfferHolderEnded, Holder: 1, Bytes: 20, Wrote: true}}, out)
	r.bind(t, 2, 500)
	out = r.step(protocol.OfferEvent{Kind: protocol.OfferFin, Holder: 2})
	assert.Equal(t, protocol.OfferEffect{Kind: protocol.OfferFence, Holder: 2}, out[0], "a notification without bytes")
	r.bind(t, 3, 500)
	out = r.step(protocol.OfferEvent{Kind: protocol.OfferArrival, Holder: 3, Tag: protocol.MaxOfferOps, Bytes: 1})
	assert.Equal(t, fault.ProtocolViolation, out[0].Code)
	r.bind(t, 4, 500)
	require.Empty(t, r.step(protocol.OfferEvent{Kind: protocol.OfferArrival, Holder: 4, Tag: 1<<16 - 1, Bytes: 1}))
	out = r.step(protocol.OfferEvent{Kind: protocol.OfferArrival, Holder: 4, Tag: 1<<16 + 1, Bytes: 1})
	assert.Equal(t, fault.ProtocolViolation, out[0].Code, "further ahead than anything can be in flight")
}

func TestRenewMovesTheEnd(t *testing.T) {
	l := protocol.NewLease(1, 1, 8, 100)
	l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRenew, Now: 50, Deadline: 200})
	out := l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseBind, Now: 150, Deadline: 180})
	require.Equal(t, protocol.LeaseOpenWindow, out[0].Kind)
	require.EqualValues(t, 180, out[0].Deadline)
	out = l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRenew, Now: 160, Deadline: 170})
	require.Equal(t, []protocol.LeaseEffect{{Kind: protocol.LeaseExtend, Deadline: 170}}, out)
	out = l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRenew, Now: 165, Deadline: 900})
	require.Equal(t, []protocol.LeaseEffect{{Kind: protocol.LeaseExtend, Deadline: 180}}, out, "not past the transfer's own time")
	out = l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRenew, Now: 180, Deadline: 900})
	require.Equal(t, fault.DeadlineExceeded, out[len(out)-1].Code, "time that is over does not come back")
	require.Empty(t, l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseRenew, Now: 181, Deadline: 900}))

	r := &offerRun{o: protocol.NewOffer(rdma.AccessRead, 1, 100)}
	r.bind(t, 1, 500)
	r.now = 99
	effects := r.step(protocol.OfferEvent{Kind: protocol.OfferRenew, Deadline: 900})
	assert.Equal(t, []protocol.OfferEffect{{Kind: protocol.OfferExtend, Holder: 1, Deadline: 500}, {Kind: protocol.OfferTickAt, Deadline: 900}}, effects)
	r.now = 900
	assert.Empty(t, func() []protocol.OfferEffectKind {
		var bad []protocol.OfferEffectKind
		for _, f := range r.step(protocol.OfferEvent{Kind: protocol.OfferRenew, Deadline: 9000}) {
			if f.Kind == protocol.OfferExtend {
				bad = append(bad, f.Kind)
			}
		}
		return bad
	}())
}

// TestRandomOffersEnd feeds any order of events: an offer ends exactly once, each holder exactly once and behind its fence.
func TestRandomOffersEnd(t *testing.T) {
	rng := testseed.New(t)
	for range 3000 {
		access := rdma.AccessRead
		if rng.IntN(2) == 0 {
			access = rdma.AccessWrite
		}
		r := &offerRun{o: protocol.NewOffer(access, rng.Uint32N(3), rdma.Instant(20+rng.IntN(60)))}
		open, fencing, over := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
		ends := 0
		do := func(effects []protocol.OfferEffect) {
			for _, f := range effects {
				switch f.Kind {
				case protocol.OfferOpenWindow:
					require.Zero(t, ends, "a window after the end")
					require.Greater(t, f.Deadline, r.now)
					open[f.Holder] = true
				case protocol.OfferFence:
					require.True(t, open[f.Holder] && !fencing[f.Holder], "fence of a window that is not open")
					fencing[f.Holder] = true
				case protocol.OfferHolderEnded:
					require.True(t, over[f.Holder], "holder ended before its fence")
					delete(open, f.Holder)
				case protocol.OfferEnd, protocol.OfferQuarantine:
					require.Empty(t, open, "the offer ended while a window was open")
					ends++
				}
			}
		}
		next := uint64(0)
		for range 60 {
			r.now += rdma.Instant(rng.IntN(4))
			h := uint64(0)
			if next > 0 {
				h = 1 + rng.Uint64N(next)
			}
			switch rng.IntN(10) {
			case 0, 1:
				next++
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferBind, Holder: next, Deadline: r.now + 1 + rdma.Instant(rng.IntN(60))}))
			case 2:
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferArrival, Holder: h, Tag: rng.Uint64N(3), Bytes: 4}))
			case 3:
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferFin, Holder: h, Pieces: rng.Uint64N(3)}))
			case 4:
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferRelease, Holder: h, Bytes: 4}))
			case 5:
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferAbort, Holder: h, Code: fault.Cancelled}))
			case 6:
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferTick}))
			case 7:
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferRenew, Deadline: r.now + rdma.Instant(rng.IntN(30))}))
			case 8:
				if rng.IntN(8) == 0 {
					do(r.step(protocol.OfferEvent{Kind: protocol.OfferRevoke, Code: fault.LeaseRevoked}))
				}
			case 9:
				if fencing[h] && !over[h] {
					over[h] = true
					do(r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: h, OK: rng.IntN(20) > 0}))
				}
			}
		}
		r.now = 100000
		do(r.step(protocol.OfferEvent{Kind: protocol.OfferTick}))
		for h := range fencing {
			if !over[h] {
				over[h] = true
				do(r.step(protocol.OfferEvent{Kind: protocol.OfferFenced, Holder: h, OK: true}))
			}
		}
		require.Equal(t, 1, ends)
		require.True(t, r.o.Phase().Ended())
		require.Zero(t, r.o.Holders())
	}
}
