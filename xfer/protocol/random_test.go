package protocol_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/layout"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// TestRandomHistoriesEnd joins a push and a lease by two queues that are delivered in random order between the
// directions, with random ends thrown in, and checks what must hold at every step and at the end.
func TestRandomHistoriesEnd(t *testing.T) {
	rng := testseed.New(t)
	commits, failures := 0, 0
	for round := range 3000 {
		layers, blocks := 1+rng.Uint32N(3), 1+rng.Uint32N(4)
		lease := protocol.NewLease(layers, blocks, pieceBytes, 10_000)
		push := protocol.NewTransfer(protocol.TransferWrite, layers, blocks, rdma.Instant(2_000+rng.IntN(10_000)))
		var now rdma.Instant
		var toLease []protocol.LeaseEvent
		var toPush []protocol.TransferEvent
		windowOpen, fences, results, aborted, finSent := false, 0, 0, false, false
		var flying []protocol.TransferEffect // posted pieces, not placed

		var doPush func(out []protocol.TransferEffect)
		var doLease func(out []protocol.LeaseEffect)
		doPush = func(out []protocol.TransferEffect) {
			for _, f := range out {
				switch f.Kind {
				case protocol.TransferPost:
					require.Zero(t, results, "post after the result")
					flying = append(flying, f)
				case protocol.TransferCancelOps:
					for _, x := range flying {
						toPush = append(toPush, protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: x.Count, Code: fault.Cancelled})
					}
					flying = nil
				case protocol.TransferSendFin:
					require.False(t, aborted)
					require.Zero(t, results)
					finSent = true
					toLease = append(toLease, protocol.LeaseEvent{Kind: protocol.LeaseFin, Pieces: uint64(layers) * uint64(blocks)})
				case protocol.TransferSendAbort:
					require.Zero(t, push.Outstanding(), "ABORT with something in flight")
					require.Empty(t, flying)
					aborted = true
					toLease = append(toLease, protocol.LeaseEvent{Kind: protocol.LeaseAbort, Code: f.Code})
				case protocol.TransferResult:
					results++
					if f.Released {
						require.Zero(t, push.Outstanding())
						require.Empty(t, flying)
					}
				}
			}
		}
		doLease = func(out []protocol.LeaseEffect) {
			for _, f := range out {
				switch f.Kind {
				case protocol.LeaseRefuse:
					toPush = append(toPush, protocol.TransferEvent{Kind: protocol.TransferRefused, Code: f.Code})
				case protocol.LeaseOpenWindow:
					windowOpen = true
					toPush = append(toPush, protocol.TransferEvent{Kind: protocol.TransferBound})
				case protocol.LeaseFence:
					fences++
				case protocol.LeaseCommit:
					require.False(t, windowOpen, "committed under an open window")
					require.True(t, finSent)
					toPush = append(toPush, protocol.TransferEvent{Kind: protocol.TransferDone})
				case protocol.LeaseFree:
					require.False(t, windowOpen, "freed under an open window")
					toPush = append(toPush, protocol.TransferEvent{Kind: protocol.TransferPeerEnded, Code: f.Code})
				}
			}
		}
		stepPush := func(e protocol.TransferEvent) { e.Now = now; doPush(push.Step(nil, e)) }
		stepLease := func(e protocol.LeaseEvent) { e.Now = now; doLease(lease.Step(nil, e)) }

		stepLease(protocol.LeaseEvent{Kind: protocol.LeaseBind, Deadline: 10_000})
		parts := rng.Perm(int(layers * blocks))
		troubled := rng.IntN(2) == 0
		for i := 0; i < 400 && !(push.Phase() == protocol.TransferEnded && lease.Phase().Ended()); i++ {
			now += rdma.Instant(rng.IntN(20))
			switch rng.IntN(7) {
			case 0, 1:
				if len(parts) > 0 && push.Phase() < protocol.TransferFinishing {
					stepPush(layer(uint32(parts[0])/blocks, uint32(parts[0])%blocks, 1))
					if parts = parts[1:]; len(parts) == 0 {
						stepPush(finish)
					}
				}
			case 2:
				if len(flying) > 0 { // a random piece lands, sometimes twice
					k := rng.IntN(len(flying))
					x := flying[k]
					flying = append(flying[:k], flying[k+1:]...)
					code := fault.Code(0)
					if windowOpen {
						for range 1 + rng.IntN(2) {
							stepLease(protocol.LeaseEvent{Kind: protocol.LeaseArrival, Tag: layout.NewTag(x.Layer, x.First, x.Count), Bytes: uint64(x.Count) * pieceBytes})
						}
					} else {
						code = fault.StaleKey
					}
					toPush = append(toPush, protocol.TransferEvent{Kind: protocol.TransferCompletion, Count: x.Count, Code: code})
				}
			case 3:
				if len(toLease) > 0 {
					e := toLease[0]
					toLease = toLease[1:]
					stepLease(e)
				}
			case 4:
				if len(toPush) > 0 {
					e := toPush[0]
					toPush = toPush[1:]
					stepPush(e)
				}
			case 5:
				if fences > 0 {
					fences--
					windowOpen = false
					stepLease(protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: true})
				}
			case 6:
				if !troubled || rng.IntN(20) > 0 {
					break
				}
				switch rng.IntN(4) {
				case 0:
					stepPush(cancel)
				case 1:
					stepLease(protocol.LeaseEvent{Kind: protocol.LeaseRevoke, Code: fault.LeaseRevoked})
				case 2:
					stepPush(protocol.TransferEvent{Kind: protocol.TransferPeerLost})
					stepLease(protocol.LeaseEvent{Kind: protocol.LeasePeerLost})
				case 3:
					now += 5_000
				}
			}
		}
		// Time ends whatever is left.
		now += 50_000
		for range 200 {
			stepPush(protocol.TransferEvent{Kind: protocol.TransferTick})
			stepLease(protocol.LeaseEvent{Kind: protocol.LeaseTick})
			for _, e := range toPush {
				toPush = toPush[1:]
				stepPush(e)
			}
			if fences > 0 {
				fences, windowOpen = 0, false
				stepLease(protocol.LeaseEvent{Kind: protocol.LeaseFenced, OK: true})
			}
			now += protocol.ReleaseGrace
		}
		require.Equal(t, protocol.TransferEnded, push.Phase(), "round %d", round)
		require.True(t, lease.Phase().Ended(), "round %d", round)
		require.Equal(t, 1, results, "round %d: one result", round)
		if lease.Phase() == protocol.LeaseCommitted {
			commits++
		} else {
			failures++
		}
	}
	t.Logf("%d commits, %d failures", commits, failures)
	require.Positive(t, commits)
	require.Positive(t, failures)
}
