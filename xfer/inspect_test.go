package xfer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// watchedDialer says how far its dial is; a fake node's own does not.
type watchedDialer struct {
	xfer.Dialer
	state xfer.DialState
}

func (d watchedDialer) Dialing(xfer.PeerRef) (xfer.DialState, bool) { return d.state, true }

// looking is a fake node under a clock that the test moves.
func looking(t *testing.T) (*fakeNode, *handClock) {
	clock := &handClock{}
	clock.now.Store(int64(time.Hour))
	return newFakeNode(t, func(o *xfer.Options) { o.Clock = clock }), clock
}

func (c *handClock) pass(d time.Duration) { c.now.Add(int64(d)) }

func inspect[T any](t testing.TB, n *node, q wire.Inspect) ([]T, wire.InspectInfo) {
	t.Helper()
	require.NoError(t, q.Validate())
	info, array, err := n.engine.Inspect("default", q)
	require.NoError(t, err)
	rows, err := wire.Rows[T](array)
	require.NoError(t, err)
	return rows, info
}

func theTransfer(t testing.TB, n *fakeNode) wire.TransferRow {
	t.Helper()
	rows, _ := inspect[wire.TransferRow](t, n.node, wire.Inspect{What: wire.InspectTransfers, Ended: true, Detail: true})
	require.Len(t, rows, 1)
	return rows[0]
}

func theLease(t testing.TB, n *fakeNode) wire.LeaseRow {
	t.Helper()
	rows, _ := inspect[wire.LeaseRow](t, n.node, wire.Inspect{What: wire.InspectLeases, Detail: true})
	require.Len(t, rows, 1)
	return rows[0]
}

// untilTransfer waits until the transfer waits for something.
func (n *fakeNode) untilTransfer(what string) (row wire.TransferRow) {
	n.t.Helper()
	n.until(func() bool { row = theTransfer(n.t, n); return row.Waiting != nil && row.Waiting.For == what })
	return row
}

func (n *fakeNode) untilLease(what string) (row wire.LeaseRow) {
	n.t.Helper()
	n.until(func() bool { row = theLease(n.t, n); return row.Waiting != nil && row.Waiting.For == what })
	return row
}

func gap(layer, pieces uint32) wire.LayerGap { return wire.LayerGap{Layer: layer, Pieces: pieces} }

// TestPushSaysWhatItWaitsFor stops a push at each step.
func TestPushSaysWhatItWaitsFor(t *testing.T) {
	n, clock := looking(t)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(1)
	found := n.dial
	dialled := make(chan struct{})
	n.dial = func(ctx context.Context) (xfer.Link, error) { <-dialled; return found(ctx) }
	n.engine.SetDialer(watchedDialer{n, xfer.DialState{Addr: "b:2", Step: "hello", For: time.Second, Before: "a:1 refused"}})

	id := w.push(ticket(2), time.Hour, 1, 2)
	clock.pass(1500 * time.Millisecond)
	row := theTransfer(t, n)
	assert.Equal(t, "BINDING", row.State)
	assert.Equal(t, &wire.Waiting{For: wire.WaitLink, Text: "a link to peer: hello at b:2 for 1s; before: a:1 refused", Ms: 1500, Peer: "peer", Addr: "b:2"}, row.Waiting)
	assert.EqualValues(t, 3_598_500, row.RemainingMs)
	assert.Equal(t, []wire.LayerGap{gap(0, 2), gap(1, 2), gap(2, 2), gap(3, 2)}, row.Missing)

	close(dialled)
	row = n.untilTransfer(wire.WaitBind)
	w.layer(id, 0) // what the client does meanwhile does not shorten the wait for the peer
	clock.pass(700 * time.Millisecond)
	row = theTransfer(t, n)
	assert.EqualValues(t, 700, row.Waiting.Ms)
	assert.Equal(t, "fake", row.Provider)

	l.bound(w, 1, 4, 5)
	row = n.untilTransfer(wire.WaitProvider)
	assert.Equal(t, "OPEN", row.State)
	assert.Equal(t, 1, row.Operations)
	clock.pass(300 * time.Millisecond)
	w.layer(id, 1) // the window is full: it is queued, and is no progress of the provider's
	clock.pass(200 * time.Millisecond)
	row = theTransfer(t, n)
	assert.EqualValues(t, 500, row.Waiting.Ms)
	assert.Equal(t, []int{1, 1, 1}, []int{row.Operations, row.Queued, row.Depth})
	assert.Contains(t, row.Waiting.Text, "the client has 4 of 8 pieces to hand over")

	l.init.complete(0, false)
	n.until(func() bool { posts, _ := l.init.count(); return posts == 2 })
	l.init.complete(0, false)
	row = n.untilTransfer(wire.WaitClient)
	clock.pass(2 * time.Second)
	row = theTransfer(t, n)
	assert.EqualValues(t, 2000, row.Waiting.Ms)
	assert.Equal(t, "the client c (pid 0) to hand over 4 of 8 pieces", row.Waiting.Text)
	assert.Equal(t, []wire.LayerGap{gap(2, 2), gap(3, 2)}, row.Missing)
	assert.EqualValues(t, 4, row.Placed)

	for layer := uint32(2); layer < 4; layer++ {
		w.layer(id, layer)
		n.until(func() bool { _, pending := l.init.count(); return pending == 1 })
		l.init.complete(0, false)
		n.until(func() bool { return theTransfer(t, n).Outstanding == 0 })
	}
	assert.Contains(t, n.untilTransfer(wire.WaitClient).Waiting.Text, "to finish")
	n.engine.PushFinish(w.id, id, nil)
	l.take(wire.KindFin)
	clock.pass(time.Second)
	row = theTransfer(t, n)
	assert.Equal(t, "FINISHING", row.State)
	assert.Equal(t, wire.WaitDone, row.Waiting.For)
	assert.EqualValues(t, 1000, row.Waiting.Ms)

	l.receive(wire.KindDone, 0, wire.Done{Handle: 1}, nil)
	w.transferEnd(id)
	clock.pass(time.Minute)
	n.until(func() bool { return n.engine.Stats().Transfers == 0 })
	row = theTransfer(t, n)
	assert.Equal(t, "ENDED", row.State)
	assert.Equal(t, "DONE", row.Result)
	assert.Nil(t, row.Waiting)
	assert.EqualValues(t, 60_000, row.EndedMs)
	assert.EqualValues(t, 5700, row.AgeMs)
	assert.Equal(t, 2*small.BlockBytes(), row.Bytes)
	assert.NotEmpty(t, row.TraceID)
}

// TestWindowOfOthersIsNamed: a transfer whose parts stand behind those of another one.
func TestWindowOfOthersIsNamed(t *testing.T) {
	n, _ := looking(t)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(1)
	first := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 1, 1)
	w.layer(first, 0)
	second := w.push(ticket(1), time.Hour, 2)
	l.bound(w, 2, 2)
	w.layer(second, 0)
	rows, _ := inspect[wire.TransferRow](t, n.node, wire.Inspect{What: wire.InspectTransfers})
	require.Len(t, rows, 2)
	assert.Equal(t, "the window of provider fake: 1 parts stand behind 1 operations on the link to peer; the client has 3 of 4 pieces to hand over", rows[1].Waiting.Text)
	l.init.complete(0, true)
	n.engine.CancelTransfer(w.id, first)
	n.engine.CancelTransfer(w.id, second)
}

// TestFailedTransferSaysWhatHoldsItsMemory: cancelled operations that do not complete, and a vanished window's reason.
func TestFailedTransferSaysWhatHoldsItsMemory(t *testing.T) {
	n, clock := looking(t)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	l.init.withhold = true
	id := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 1, 1)
	w.layer(id, 0)
	n.engine.CancelTransfer(w.id, id)
	clock.pass(time.Second)
	row := theTransfer(t, n)
	assert.Equal(t, "CLOSING", row.State)
	assert.Equal(t, wire.WaitProvider, row.Waiting.For)
	assert.Contains(t, row.Waiting.Text, "the memory is in use until then")
	assert.EqualValues(t, 1000, row.Waiting.Ms)
	l.init.complete(fault.Cancelled, true)
	w.transferEnd(id)
	n.until(func() bool { return n.engine.Stats().Transfers == 0 })
	row = theTransfer(t, n)
	assert.Equal(t, "Cancelled", row.Result)
	require.NotNil(t, row.Error)

	n, clock = looking(t)
	w = newWorker(t, n.node, "c", small, 8)
	l = n.source(8)
	id = w.push(ticket(1), time.Hour, 1)
	l.bound(w, 1, 1)
	w.layer(id, 0)
	l.init.complete(fault.StaleKey, true)
	n.untilTransfer(wire.WaitReason)
	clock.pass(time.Second)
	assert.EqualValues(t, 1000, theTransfer(t, n).Waiting.Ms)
	l.receive(wire.KindEnded, 0, wire.Ended{Handle: 1, Error: fault.ToWire(fault.New(fault.LeaseRevoked, "lease", ""))}, nil)
	w.transferEnd(id)
	n.until(func() bool { return n.engine.Stats().Transfers == 0 })
	assert.Equal(t, "LeaseRevoked", theTransfer(t, n).Result)
}

// TestPullSaysWhatItWaitsFor: every byte is here, and only the source's word is missing.
func TestPullSaysWhatItWaitsFor(t *testing.T) {
	n, clock := looking(t)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	p, err := wire.ParseTicket(ticket(1))
	require.NoError(t, err)
	p.Grants[0].Mode = wire.ModeRead
	id := w.pull(p.Encode(), time.Hour, "", 3)
	l.bound(w, 1, 1)
	l.init.complete(0, true)
	n.until(func() bool { l.init.complete(0, true); return theTransfer(t, n).State == "FINISHING" })
	clock.pass(time.Second)
	row := theTransfer(t, n)
	assert.Equal(t, wire.WaitRelease, row.Waiting.For)
	assert.EqualValues(t, 1000, row.Waiting.Ms)
	blocks, _ := inspect[wire.BlockRow](t, n.node, wire.Inspect{What: wire.InspectBlocks, Cache: "c"})
	require.Len(t, blocks, 1)
	assert.Equal(t, "LEASED", blocks[0].State)
	assert.Len(t, blocks[0].Lease, 32)
	f := l.take(wire.KindRelease)
	l.receive(wire.KindOK, f.Request, nil, nil)
	require.Nil(t, w.transferEnd(id).Error)
}

// TestWriteLeaseSaysWhatItWaitsFor: a transfer, its pieces, its FIN, the fence.
func TestWriteLeaseSaysWhatItWaitsFor(t *testing.T) {
	n, clock := looking(t)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	l.target.gate = make(chan struct{})
	lease := w.lease(time.Hour, 3, 4)
	clock.pass(time.Second)
	row := theLease(t, n)
	assert.Equal(t, "GRANTED", row.State)
	assert.Equal(t, &wire.Waiting{For: wire.WaitSource, Text: "a transfer to bind it", Ms: 1000}, row.Waiting)
	assert.Equal(t, lease.LeaseID, row.LeaseID)

	b := bind(t, w, lease.Ticket)
	b.Traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	l.receive(wire.KindBind, 1, b, nil)
	l.take(wire.KindOK)
	clock.pass(time.Second)
	l.arrival(1, 0, 0, 2)
	l.arrival(1, 1, 1, 1)
	n.until(func() bool { return theLease(t, n).Arrived == 3 })
	clock.pass(400 * time.Millisecond)
	row = theLease(t, n)
	assert.Equal(t, "BOUND", row.State)
	assert.Equal(t, &wire.Waiting{For: wire.WaitPieces, Text: "5 of 8 pieces from peer over fake", Ms: 400, Peer: "peer"}, row.Waiting)
	assert.Equal(t, []wire.LayerGap{gap(1, 1), gap(2, 2), gap(3, 2)}, row.Missing)
	assert.Equal(t, "4bf92f3577b34da6a3ce929d0e0e4736", row.TraceID)
	assert.EqualValues(t, 58_600, row.RemainingMs, "the transfer's own time is shorter than the lease's")
	byTransfer, _ := inspect[wire.LeaseRow](t, n.node, wire.Inspect{What: wire.InspectLeases, ID: b.Transfer[:20]})
	assert.Len(t, byTransfer, 1)

	l.arrival(1, 1, 0, 1)
	l.arrival(1, 2, 0, 2)
	l.arrival(1, 3, 0, 2)
	n.untilLease(wire.WaitFin)
	l.receive(wire.KindFin, 0, wire.Fin{Handle: 1, Pieces: 8}, nil)
	clock.pass(900 * time.Millisecond)
	row = theLease(t, n)
	assert.Equal(t, "FENCING", row.State)
	assert.Equal(t, wire.WaitFence, row.Waiting.For)
	assert.EqualValues(t, 900, row.Waiting.Ms)
	assert.Equal(t, "the fence of peer's window by this node's provider fake (everything has arrived)", row.Waiting.Text)
	close(l.target.gate)
	require.Nil(t, w.leaseEnd(lease.Lease).Error)
	rows, _ := inspect[wire.LeaseRow](t, n.node, wire.Inspect{What: wire.InspectLeases})
	assert.LessOrEqual(t, len(rows), 1, "it may still be leaving the table")
}

// TestReadLeaseSaysWhoHoldsIt: several readers, one of which stands still, and the fence of one.
func TestReadLeaseSaysWhoHoldsIt(t *testing.T) {
	n, clock := looking(t)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	info := w.offer(3, time.Hour, 1)
	assert.Equal(t, wire.WaitSource, theLease(t, n).Waiting.For)
	for i, transfer := range []string{firstTransfer, secondTransfer} {
		clock.pass(time.Second)
		b := bind(t, w, info.Ticket)
		b.Transfer, b.Mode = transfer, wire.ModeRead
		l.receive(wire.KindBind, uint64(i+1), b, nil)
		l.take(wire.KindOK)
	}
	clock.pass(500 * time.Millisecond)
	row := theLease(t, n)
	assert.Equal(t, "read", row.Kind)
	assert.Equal(t, []uint64{3, 2}, []uint64{row.Uses, row.Used})
	require.Len(t, row.Holders, 2)
	assert.Equal(t, wire.HolderRow{TransferID: firstTransfer, Peer: "peer", Provider: "fake", State: "BOUND", MovedMs: 1500}, row.Holders[0])
	assert.Equal(t, &wire.Waiting{For: wire.WaitHolder, Text: "2 transfers that hold it; the one that stands still longest: RELEASE of peer's transfer", Ms: 1500, Peer: "peer"}, row.Waiting)
	blocks, info2 := inspect[wire.BlockRow](t, n.node, wire.Inspect{What: wire.InspectBlocks, Cache: "c"})
	assert.Equal(t, []wire.BlockRow{{Block: 1, State: "FREE", Holds: 1}}, blocks)
	assert.Equal(t, &wire.BlockCounts{Total: 8, Free: 8, Held: 1}, info2.Counts)
	both, _ := inspect[wire.LeaseRow](t, n.node, wire.Inspect{What: wire.InspectLeases, ID: secondTransfer})
	assert.Len(t, both, 1, "it is found by any holder's transfer")

	l.target.gate = make(chan struct{})
	l.receive(wire.KindRelease, 9, wire.Release{Handle: 2, Bytes: 8}, nil)
	clock.pass(200 * time.Millisecond)
	row = n.untilLease(wire.WaitFence)
	assert.EqualValues(t, 200, row.Waiting.Ms)
	assert.Equal(t, "FENCING", row.Holders[1].State)
	close(l.target.gate)
	n.until(func() bool { return len(theLease(t, n).Holders) == 1 })
	require.NoError(t, n.engine.Revoke(w.id, info.Lease))
}

// TestPartSaysWhoDecides: a BIND for a part of an instance's lease waits for the node that made it.
func TestPartSaysWhoDecides(t *testing.T) {
	n, clock := looking(t)
	w := rankOf(t, n, 1)
	asker, src := n.target(), n.target()
	part := grantPart(t, asker, w, 3)
	row := theLease(t, n)
	assert.Equal(t, "000000000000000000000000000000ee", row.Part)
	assert.Equal(t, wire.WaitSource, row.Waiting.For)
	clock.pass(time.Second)
	src.receive(wire.KindBind, 1, bindPart(w, part, secondTransfer, 60_000), nil)
	claimOn(t, asker)
	clock.pass(300 * time.Millisecond)
	row = theLease(t, n)
	assert.Equal(t, &wire.Waiting{For: wire.WaitAsker, Text: "peer, which made the instance's lease, to say whether one of 1 transfers may own it", Ms: 300, Peer: "peer"}, row.Waiting)
	require.NoError(t, n.engine.Revoke(w.id, w.granted[0].Lease))
}

// TestInstanceSaysWhichRanksAreMissing over two nodes.
func TestInstanceSaysWhichRanksAreMissing(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "p", "x")
	newInstance(t, net, "dec", 30, "d0", "d1")
	src := newInstance(t, net, "pre", 30, "p", "p")
	asker := newClient(t, net.nodes["x"], "asker")
	info := asker.mustLease("dec", 1, 2)
	whole := func() wire.LeaseRow {
		rows, _ := inspect[wire.LeaseRow](t, net.nodes["x"], wire.Inspect{What: wire.InspectLeases})
		require.Len(t, rows, 1)
		return rows[0]
	}
	row := whole()
	assert.Equal(t, []string{"instance", "dec", "GRANTED", wire.WaitSource}, []string{row.Kind, row.Memory, row.State, row.Waiting.For})
	a := src[0].pushAs(info.Ticket, firstTransfer, 0, 1, 2)
	src[0].pushAll(a, "")
	require.Nil(t, src[0].transferEnd(a).Error)
	require.Eventually(t, func() bool {
		w := whole().Waiting
		return w.For == wire.WaitParts && w.Text == "the end of rank 1 on d1"
	}, patience, time.Millisecond)
	assert.Equal(t, "BOUND", whole().State)
	b := src[1].pushAs(info.Ticket, firstTransfer, 0, 1, 2)
	src[1].pushAll(b, "")
	require.Nil(t, asker.leaseEnd(info.Lease).Error)
}
