package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

func layer(l, first, count uint32) protocol.TransferEvent {
	return protocol.TransferEvent{Kind: protocol.TransferLayer, Layer: l, First: first, Count: count}
}

func done(count uint32) protocol.TransferEvent {
	return protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: count}
}

func steps(p *protocol.Transfer, events ...protocol.TransferEvent) []protocol.TransferEffect {
	var out []protocol.TransferEffect
	for _, e := range events {
		out = p.Step(nil, e)
	}
	return out
}

var (
	bound  = protocol.TransferEvent{Kind: protocol.TransferBound}
	finish = protocol.TransferEvent{Kind: protocol.TransferFinish}
	cancel = protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.Cancelled}
)

func TestPushEndToEnd(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 2, 3, 1000)
	assert.Empty(t, steps(p, layer(1, 0, 0)), "layers before the answer wait")
	out := steps(p, bound)
	require.Len(t, out, 1)
	assert.Equal(t, protocol.TransferEffect{Kind: protocol.TransferPost, Layer: 1, First: 0, Count: 3}, out[0])
	steps(p, layer(0, 2, 1), layer(0, 0, 2), finish, done(3), done(1))
	out = steps(p, done(2))
	require.Len(t, out, 1)
	assert.Equal(t, protocol.TransferSendFin, out[0].Kind)
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferDone})
	require.Len(t, out, 2)
	assert.Equal(t, protocol.TransferReleaseOwn, out[0].Kind)
	assert.Equal(t, protocol.TransferEffect{Kind: protocol.TransferResult, Wrote: true, Released: true}, out[1])
}

func TestReleasedMeansNothingOutstanding(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 2, 1000)
	steps(p, bound, layer(0, 0, 1), layer(0, 1, 1))
	out := steps(p, cancel)
	require.Len(t, out, 2)
	assert.Equal(t, protocol.TransferCancelOps, out[0].Kind)
	assert.Equal(t, protocol.TransferTickAt, out[1].Kind)
	assert.Empty(t, steps(p, protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: 1, Code: fault.Cancelled}))
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferTick, Now: out[1].At})
	require.Len(t, out, 1)
	assert.False(t, out[0].Released)
	assert.True(t, out[0].Wrote)
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: 1, Code: fault.Cancelled})
	require.Len(t, out, 3)
	assert.Equal(t, []protocol.TransferEffectKind{protocol.TransferSendAbort, protocol.TransferReleaseOwn, protocol.TransferReleased},
		[]protocol.TransferEffectKind{out[0].Kind, out[1].Kind, out[2].Kind}, "ABORT only when nothing is in flight")
}

func TestNoFinAfterTheEnd(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 1, 1000)
	steps(p, bound, layer(0, 0, 1), finish, cancel)
	for _, e := range []protocol.TransferEvent{done(1), bound, finish, {Kind: protocol.TransferDone}} {
		for _, f := range steps(p, e) {
			assert.NotEqual(t, protocol.TransferSendFin, f.Kind)
		}
	}
	assert.Equal(t, protocol.TransferEnded, p.Phase())
}

func TestLateAnswerToAnEndedPushIsAborted(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 1, 1000)
	out := steps(p, cancel)
	require.Len(t, out, 2)
	assert.True(t, out[1].Released)
	out = steps(p, bound)
	require.Len(t, out, 1)
	assert.Equal(t, protocol.TransferSendAbort, out[0].Kind)
}

func TestBadPartsAreNamed(t *testing.T) {
	for _, events := range [][]protocol.TransferEvent{
		{layer(2, 0, 1)}, {layer(0, 3, 1)}, {layer(0, 1, 3)}, {layer(0, 0, 1), layer(0, 0, 1)}, {layer(0, 0, 0), finish},
	} {
		p := protocol.NewTransfer(protocol.TransferWrite, 2, 3, 1000)
		out := steps(p, events...)
		last := out[len(out)-1]
		assert.Equal(t, fault.InvalidArgument, last.Code, "%+v", events)
		assert.NotEmpty(t, last.Detail)
	}
}

func TestPushEndsByItsDeadline(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 1, 1000)
	out := steps(p, protocol.TransferEvent{Kind: protocol.TransferTick, Now: 1000})
	require.Len(t, out, 2)
	assert.Equal(t, fault.DeadlineExceeded, out[1].Code)
	assert.False(t, out[1].Wrote)
}

func TestDoneOutOfPlaceDropsTheLink(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 1, 1000)
	out := steps(p, bound, protocol.TransferEvent{Kind: protocol.TransferDone})
	assert.Equal(t, protocol.TransferViolation, out[0].Kind)
}

func TestVanishedWindowWaitsForItsReason(t *testing.T) {
	stale := protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: 1, Code: fault.StaleKey}

	p := protocol.NewTransfer(protocol.TransferWrite, 1, 2, 1<<60)
	steps(p, bound, layer(0, 0, 1), layer(0, 1, 1))
	out := steps(p, stale)
	require.Len(t, out, 2)
	assert.Equal(t, protocol.TransferCancelOps, out[0].Kind)
	assert.Empty(t, steps(p, stale))
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: fault.LeaseRevoked})
	require.Len(t, out, 2)
	assert.Equal(t, fault.LeaseRevoked, out[1].Code)
	assert.True(t, out[1].Released)

	p = protocol.NewTransfer(protocol.TransferWrite, 1, 1, 1<<60)
	steps(p, bound, layer(0, 0, 1))
	out = steps(p, stale)
	require.Len(t, out, 1)
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferTick, Now: out[0].At})
	assert.Equal(t, fault.StaleKey, out[len(out)-1].Code, "the reason never came")
	assert.Equal(t, protocol.TransferEnded, p.Phase())
}

// TestRefusedReleaseWaitsForItsReason: the owner has ended the read, and its ENDED comes behind the answer to RELEASE.
func TestRefusedReleaseWaitsForItsReason(t *testing.T) {
	finishing := func() *protocol.Transfer {
		p := protocol.NewTransfer(protocol.TransferRead, 1, 1, 1<<60)
		steps(p, bound, layer(0, 0, 1), protocol.TransferEvent{Kind: protocol.TransferFinish}, protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: 1})
		require.Equal(t, protocol.TransferFinishing, p.Phase())
		return p
	}
	refused := protocol.TransferEvent{Kind: protocol.TransferRefused, Code: fault.StaleKey}

	p := finishing()
	out := steps(p, refused)
	require.Len(t, out, 1)
	assert.Equal(t, protocol.TransferTickAt, out[0].Kind)
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: fault.Draining})
	assert.Equal(t, []protocol.TransferEffect{{Kind: protocol.TransferReleaseOwn, Code: fault.Draining},
		{Kind: protocol.TransferResult, Code: fault.Draining, Wrote: true, Released: true}}, out, "no ABORT: the owner has ended it")

	p = finishing()
	steps(p, refused)
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferPeerLost})
	assert.Equal(t, fault.PeerLost, out[len(out)-1].Code)

	p = finishing()
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferRefused, Code: fault.LeaseRevoked})
	assert.Equal(t, fault.LeaseRevoked, out[len(out)-1].Code, "this says why itself")

	p = protocol.NewTransfer(protocol.TransferRead, 1, 1, 1<<60)
	out = steps(p, refused)
	assert.Equal(t, fault.StaleKey, out[len(out)-1].Code, "of a BIND nothing more comes")
}

func TestWaitForTheReasonEndsByTheDeadline(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 1, 1000)
	out := steps(p, bound, layer(0, 0, 1), protocol.TransferEvent{Kind: protocol.TransferCompletion, Now: 990, Count: 1, Code: fault.StaleKey})
	require.Len(t, out, 1)
	assert.Equal(t, protocol.TransferEffect{Kind: protocol.TransferTickAt, At: 1000}, out[0])
	out = steps(p, protocol.TransferEvent{Kind: protocol.TransferTick, Now: 1000})
	assert.Equal(t, fault.DeadlineExceeded, out[len(out)-1].Code)
	assert.Equal(t, protocol.TransferEnded, p.Phase())
}

// TestFinMayHaveBeenHeard: of a write without pieces the target may have told its client, who has a notification then.
func TestFinMayHaveBeenHeard(t *testing.T) {
	p := protocol.NewTransfer(protocol.TransferWrite, 1, 0, 1000)
	assert.False(t, steps(p, cancel)[1].Wrote, "nothing was sent")
	p = protocol.NewTransfer(protocol.TransferWrite, 1, 0, 1000)
	out := steps(p, finish, bound)
	require.Len(t, out, 1)
	assert.Equal(t, protocol.TransferSendFin, out[0].Kind)
	out = steps(p, cancel)
	assert.Equal(t, protocol.TransferResult, out[len(out)-1].Kind)
	assert.True(t, out[len(out)-1].Wrote)
}

// TestVanishedWindowGetsItsReason: a stale key alone says nothing; what explains it decides the result.
func TestVanishedWindowGetsItsReason(t *testing.T) {
	for name, c := range map[string]struct {
		then protocol.TransferEvent
		want fault.Code
	}{
		"the target's word": {protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: fault.LeaseRevoked, Now: 20}, fault.LeaseRevoked},
		"the link is lost":  {protocol.TransferEvent{Kind: protocol.TransferPeerLost, Now: 20}, fault.PeerLost},
		"its time is over":  {protocol.TransferEvent{Kind: protocol.TransferTick, Now: 100}, fault.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range []protocol.TransferKind{protocol.TransferWrite, protocol.TransferRead} {
				p := protocol.NewTransfer(kind, 1, 1, 100)
				steps(p, protocol.TransferEvent{Kind: protocol.TransferBound}, protocol.TransferEvent{Kind: protocol.TransferLayer, Count: 1},
					protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: 1, Code: fault.StaleKey, Now: 10})
				out := p.Step(nil, c.then)
				require.NotEmpty(t, out)
				last := out[len(out)-1]
				assert.Equal(t, protocol.TransferResult, last.Kind)
				assert.Equal(t, c.want, last.Code)
			}
		})
	}
}
