package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

const pieceBytes = 100

func arrive(layer, first, count uint32) protocol.LeaseEvent {
	return protocol.LeaseEvent{Kind: protocol.LeaseArrival, Tag: layout.NewTag(layer, first, count), Bytes: uint64(count) * pieceBytes}
}

func bind(now, deadline rdma.Instant) protocol.LeaseEvent {
	return protocol.LeaseEvent{Kind: protocol.LeaseBind, Now: now, Deadline: deadline}
}

// kinds drives a lease and returns the effects' kinds of the last event.
func kinds(l *protocol.Lease, events ...protocol.LeaseEvent) []protocol.LeaseEffectKind {
	var out []protocol.LeaseEffectKind
	for _, e := range events {
		out = nil
		for _, f := range l.Step(nil, e) {
			out = append(out, f.Kind)
		}
	}
	return out
}

func TestCommitNeedsPiecesAndFin(t *testing.T) {
	fin := protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: 4}
	fenced := protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: true}

	l := protocol.NewLease(2, 2, pieceBytes, 100)
	require.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseOpenWindow}, kinds(l, bind(1, 50)))
	assert.Empty(t, kinds(l, arrive(1, 0, 1)))
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseLayer}, kinds(l, arrive(1, 1, 1)))
	assert.Empty(t, kinds(l, fin), "FIN may overtake pieces")
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseLayer, protocol.LeaseFence}, kinds(l, arrive(0, 0, 2)))
	assert.False(t, l.Phase().Ended(), "COMMITTED only behind the fence")
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseCommit}, kinds(l, fenced))
	assert.Equal(t, protocol.LeaseCommitted, l.Phase())
	assert.Equal(t, uint64(4*pieceBytes), l.Bytes())

	l = protocol.NewLease(2, 2, pieceBytes, 100)
	kinds(l, bind(1, 50), arrive(0, 0, 2), arrive(1, 0, 2))
	assert.Equal(t, protocol.LeaseBound, l.Phase(), "pieces alone commit nothing")
	kinds(l, protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: 3})
	assert.Equal(t, fault.ProtocolViolation, l.Outcome(), "FIN must name the total")
}

func TestRepeatedPieceCountsOnce(t *testing.T) {
	l := protocol.NewLease(1, 2, pieceBytes, 100)
	kinds(l, bind(1, 50), protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: 2})
	assert.Empty(t, kinds(l, arrive(0, 0, 1), arrive(0, 0, 1)))
	assert.Equal(t, protocol.LeaseBound, l.Phase())
	assert.Equal(t, uint64(pieceBytes), l.Bytes())
}

func TestSecondBindIsRefused(t *testing.T) {
	l := protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, bind(1, 50))
	out := l.Step(nil, bind(2, 50))
	require.Len(t, out, 1)
	assert.Equal(t, protocol.LeaseEffect{Kind: protocol.LeaseRefuse, Code: fault.TicketBound}, out[0])
	assert.Equal(t, protocol.LeaseBound, l.Phase())

	l = protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: fault.LeaseRevoked})
	out = l.Step(nil, bind(2, 50))
	assert.Equal(t, fault.LeaseRevoked, out[0].Code)
}

func TestTheClockIsComparedNotTheTimer(t *testing.T) {
	l := protocol.NewLease(1, 1, pieceBytes, 100)
	out := l.Step(nil, bind(100, 500))
	require.Len(t, out, 3)
	assert.Equal(t, protocol.LeaseFree, out[1].Kind)
	assert.Equal(t, protocol.LeaseEffect{Kind: protocol.LeaseRefuse, Code: fault.LeaseExpired}, out[2])

	l = protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, bind(1, 500))
	late := arrive(0, 0, 1)
	late.Now = 100
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseLogRevoke, protocol.LeaseFence}, kinds(l, late))
	assert.Equal(t, fault.LeaseExpired, l.Outcome())

	l = protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, bind(1, 50), protocol.LeaseEvent{Kind: protocol.LeaseTick, Now: 50})
	assert.Equal(t, fault.DeadlineExceeded, l.Outcome(), "the transfer's time was the shorter one")
}

func TestNothingEndsBeforeTheFence(t *testing.T) {
	for _, e := range []protocol.LeaseEvent{
		{Kind: protocol.LeaseRevoke, Code: fault.LeaseRevoked}, {Kind: protocol.LeaseTick, Now: 100},
		{Kind: protocol.LeasePeerLost}, {Kind: protocol.LeaseAbort, Code: fault.Cancelled},
		{Kind: protocol.LeaseFin, Pieces: 9}, arrive(5, 0, 1), arrive(0, 1, 4), {Kind: protocol.LeaseArrival, Tag: layout.NewTag(0, 0, 1), Bytes: 1},
	} {
		l := protocol.NewLease(1, 3, pieceBytes, 100)
		kinds(l, bind(1, 200))
		assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseLogRevoke, protocol.LeaseFence}, kinds(l, e), "%+v", e)
		assert.Equal(t, protocol.LeaseFencing, l.Phase())
		assert.Empty(t, kinds(l, e), "decided once")
		out := l.Step(nil, protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: true})
		require.Len(t, out, 1)
		assert.Equal(t, protocol.LeaseFree, out[0].Kind)
		assert.True(t, out[0].Wrote)
	}
}

func TestFailedFenceQuarantines(t *testing.T) {
	l := protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, bind(1, 200), protocol.LeaseEvent{Kind: protocol.LeasePeerLost})
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseQuarantine}, kinds(l, protocol.LeaseEvent{Kind: protocol.LeaseFenced}))
	assert.Equal(t, protocol.LeaseQuarantined, l.Phase())
	assert.Equal(t, fault.Internal, l.Outcome(), "any other code would say that the blocks are fenced")
}

func TestWindowThatCannotOpenNeedsNoFence(t *testing.T) {
	l := protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, bind(1, 200))
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseLogRevoke, protocol.LeaseFree},
		kinds(l, protocol.LeaseEvent{Kind: protocol.LeaseWindowFailed, Code: fault.PeerLost}))

	l = protocol.NewLease(1, 1, pieceBytes, 100)
	kinds(l, bind(1, 200))
	assert.Equal(t, []protocol.LeaseEffectKind{protocol.LeaseLogRevoke, protocol.LeaseFree},
		kinds(l, protocol.LeaseEvent{Kind: protocol.LeaseWindowFailed, Code: fault.DeadlineExceeded, Now: 100}), "its time is over besides")
	assert.Equal(t, fault.LeaseExpired, l.Outcome())
}
