package xfer_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// Peers that break the protocol, and news that cross each other.

// TestWrongAnswersEndThePush answers BIND in ways that cannot be used: the push ends at once, not at its deadline.
func TestWrongAnswersEndThePush(t *testing.T) {
	ok := func(w *worker) wire.Bound {
		return wire.Bound{Handle: 7, Key: 1, Layout: w.spec.Layout, NumBlocks: 64, RemainingMillis: 1000}
	}
	for name, c := range map[string]struct {
		change func(*wire.Bound)
		array  []byte
	}{
		"array of no block ids": {array: []byte{1, 2, 3}},
		"a block twice":         {array: wire.AppendU32s(nil, []uint32{1, 1})},
		"a block out of range":  {array: wire.AppendU32s(nil, []uint32{1, 64})},
		"too few blocks":        {array: wire.AppendU32s(nil, []uint32{1})},
		"another layout":        {change: func(b *wire.Bound) { b.Layout.HeadDim *= 2 }, array: wire.AppendU32s(nil, []uint32{1, 2})},
		"no layout":             {change: func(b *wire.Bound) { b.Layout.Layers = 0 }, array: wire.AppendU32s(nil, []uint32{1, 2})},
		"too many blocks":       {change: func(b *wire.Bound) { b.NumBlocks = ^uint32(0) }, array: wire.AppendU32s(nil, []uint32{1, 2})},
		"no handle":             {change: func(b *wire.Bound) { b.Handle = 0 }, array: wire.AppendU32s(nil, []uint32{1, 2})},
	} {
		t.Run(name, func(t *testing.T) {
			for _, layerwise := range []bool{true, false} {
				n := newFakeNode(t, nil)
				w := newWorker(t, n.node, "c", small, 8)
				l := n.source(8)
				info, err := n.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket(2), TimeoutMillis: 3_600_000, Layerwise: layerwise}, []uint32{1, 2})
				require.NoError(t, err)
				b := ok(w)
				if c.change != nil {
					c.change(&b)
				}
				l.receive(wire.KindOK, l.take(wire.KindBind).Request, b, c.array)
				ev := w.transferEnd(info.Transfer)
				require.NotNil(t, ev.Error)
				assert.Contains(t, []string{"ProtocolViolation", "LayoutMismatch"}, ev.Error.Name)
				assert.True(t, ev.Released)
				n.until(func() bool { return n.engine.Stats().Transfers == 0 })
				posts, _ := l.init.count()
				assert.Zero(t, posts, "nothing is posted by an answer that cannot be used")
			}
		})
	}
}

// TestWrongAnswersMeetWhatIsReady has a peer answer wrongly when every piece was handed over before: nothing of it is posted.
func TestWrongAnswersMeetWhatIsReady(t *testing.T) {
	ticketFor := func(mode string, raw bool) string {
		g, err := wire.ParseTicket(ticket(2))
		require.NoError(t, err)
		if g.Grants[0].Mode, g.Grants[0].Raw = mode, raw; raw {
			g.Grants[0].Blocks = 0
		}
		return g.Encode()
	}
	for name, c := range map[string]struct {
		begin func(w, r *worker) (*worker, wire.PushInfo, error)
		want  fault.Code
	}{
		"push": {func(w, _ *worker) (*worker, wire.PushInfo, error) {
			info, err := w.node.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket(2), TimeoutMillis: 1000_000}, []uint32{1, 2})
			return w, info, err
		}, fault.LayoutMismatch},
		"pull": {func(w, _ *worker) (*worker, wire.PushInfo, error) {
			info, err := w.node.engine.Pull(w.id, wire.PullRequest{Cache: w.cache, Ticket: ticketFor("read", false), TimeoutMillis: 1000_000}, []uint32{1, 2})
			return w, info, err
		}, fault.LayoutMismatch},
		"scatter": {func(_, r *worker) (*worker, wire.PushInfo, error) {
			info, err := r.node.engine.Scatter(r.id, wire.ScatterRequest{Region: r.region, Mode: "read", Ticket: ticketFor("read", true), TimeoutMillis: 1000_000},
				[]wire.ScatterRange{{Len: 10}})
			return r, info, err
		}, fault.ProtocolViolation},
	} {
		t.Run(name, func(t *testing.T) {
			n := newFakeNode(t, nil)
			l := n.source(8)
			w, info, err := c.begin(newWorker(t, n.node, "c", small, 8), rawWorker(t, n.node, "r", 4096))
			require.NoError(t, err)
			l.receive(wire.KindOK, l.take(wire.KindBind).Request,
				wire.Bound{Handle: 7, Key: 1, Layout: small, NumBlocks: 64, RemainingMillis: 1000}, wire.AppendU32s(nil, []uint32{1}))
			ev := w.transferEnd(info.Transfer)
			assert.Equal(t, c.want, code(t, ev.Error))
			assert.True(t, ev.Released)
			assert.False(t, ev.Error.MayHaveWritten)
			var a wire.Abort
			f := l.take(wire.KindAbort)
			require.NoError(t, f.Decode(&a))
			assert.EqualValues(t, 7, a.Handle)
			n.until(func() bool { return n.engine.Stats().Transfers == 0 })
		})
	}
}

// TestHandlesAreNotShared has a peer name two transfers by one handle: neither is lost when the link goes.
func TestHandlesAreNotShared(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	a := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 5, 1)
	b := w.push(ticket(1), time.Hour, 2)
	l.bound(w, 5, 2)
	assert.NotNil(t, w.transferEnd(a).Error)
	assert.NotNil(t, w.transferEnd(b).Error)
	assert.True(t, l.down.Load())
}

// TestEndedWithoutAReason must not end the daemon.
func TestEndedWithoutAReason(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	id := w.push(ticket(1), time.Hour, 1)
	l.bound(w, 5, 1)
	l.receive(wire.KindEnded, 0, struct {
		Handle uint64 `json:"handle"`
	}{5}, nil)
	assert.NotNil(t, w.transferEnd(id).Error)
}

// TestUnknownHandlesAreIgnored sends both sides news of transfers that they do not know.
func TestUnknownHandlesAreIgnored(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	src, dst := n.source(8), n.target()
	for _, h := range []uint64{0, 1, ^uint64(0)} {
		src.receive(wire.KindDone, 0, wire.Done{Handle: h, Bytes: ^uint64(0)}, nil)
		src.receive(wire.KindEnded, 0, wire.Ended{Handle: h, Error: fault.ToWire(fault.ErrPeerLost)}, nil)
		src.receive(wire.KindOK, 1000+h, wire.Bound{Handle: h}, nil)
		dst.receive(wire.KindFin, 0, wire.Fin{Handle: h, Pieces: h}, nil)
		dst.receive(wire.KindAbort, 0, wire.Abort{Handle: h}, nil)
	}
	assert.False(t, src.down.Load())
	assert.False(t, dst.down.Load())

	// A FIN with a number out of all proportion ends its own lease alone.
	lease, other := w.lease(time.Hour, 1), w.lease(time.Hour, 2)
	dst.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	dst.receive(wire.KindBind, 2, bind(t, w, other.Ticket), nil)
	var b wire.Bound
	f := dst.take(wire.KindOK)
	require.NoError(t, f.Decode(&b))
	dst.receive(wire.KindFin, 0, wire.Fin{Handle: b.Handle, Pieces: ^uint64(0)}, nil)
	assert.Equal(t, "ProtocolViolation", w.leaseEnd(lease.Lease).Error.Name)
	assert.Zero(t, w.leaseEnd(lease.Lease).Generation, "the blocks are FREE")
	n.until(func() bool { return n.engine.Stats().Leases == 1 }) // a lease is forgotten after its client was told
}

// TestBindIsChecked refuses what would break later steps, and leaves the lease as it was.
func TestBindIsChecked(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	lease := w.lease(time.Hour, 1)
	for name, change := range map[string]func(*wire.Bind){
		"transfer":     func(b *wire.Bind) { b.Transfer = strings.Repeat("x", 1<<16) },
		"remaining_ms": func(b *wire.Bind) { b.RemainingMillis = -1 },
		"blocks":       func(b *wire.Bind) { b.Blocks = ^uint32(0) },
	} {
		b := bind(t, w, lease.Ticket)
		change(&b)
		l.receive(wire.KindBind, 9, b, nil)
		var e fault.Wire
		f := l.take(wire.KindError)
		require.NoError(t, f.Decode(&e))
		assert.Equal(t, name, e.Field)
		assert.Equal(t, "InvalidArgument", e.Name)
	}
	l.receive(wire.KindBind, 10, bind(t, w, lease.Ticket), nil)
	l.take(wire.KindOK)
}

// TestSecondBindNeverMovesTheFence: a second BIND that meets the lease's end must not lead its fence to another window.
func TestSecondBindNeverMovesTheFence(t *testing.T) {
	clock := &handClock{}
	clock.now.Store(1)
	n := newFakeNode(t, func(o *xfer.Options) { o.Clock = clock })
	w := newWorker(t, n.node, "c", small, 8)
	first, second := n.target(), n.target()
	lease := w.lease(time.Second, 1)
	first.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	first.take(wire.KindOK)
	clock.now.Store(int64(2 * time.Second))
	second.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	var e fault.Wire
	f := second.take(wire.KindError)
	require.NoError(t, f.Decode(&e))
	assert.Equal(t, "TicketBound", e.Name)
	assert.Equal(t, "LeaseExpired", w.leaseEnd(lease.Lease).Error.Name)
	assert.Equal(t, []rdma.Key{1}, first.target.fences())
	assert.Empty(t, second.target.fences())
	first.take(wire.KindEnded)
	assert.True(t, second.none(wire.KindEnded))
}

// TestBindAtTheLastMoment is answered in the protocol's range of milliseconds.
func TestBindAtTheLastMoment(t *testing.T) {
	clock := &handClock{}
	clock.now.Store(1)
	n := newFakeNode(t, func(o *xfer.Options) { o.Clock = clock })
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	lease := w.lease(time.Second, 1)
	clock.now.Store(int64(time.Second))
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	var b wire.Bound
	f := l.take(wire.KindOK)
	require.NoError(t, f.Decode(&b))
	assert.NoError(t, b.Validate())
}

// TestLateBindOfABoundLease says who has the lease, also after that one's end.
func TestLateBindOfABoundLease(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	code := func(ticket string) string {
		l.receive(wire.KindBind, 2, bind(t, w, ticket), nil)
		var e fault.Wire
		f := l.take(wire.KindError)
		require.NoError(t, f.Decode(&e))
		return e.Name
	}
	never, bound := w.lease(time.Hour, 1), w.lease(time.Hour, 2)
	l.receive(wire.KindBind, 1, bind(t, w, bound.Ticket), nil)
	l.take(wire.KindOK)
	for _, x := range []wire.LeaseInfo{never, bound} {
		require.NoError(t, n.engine.Revoke(w.id, x.Lease))
		w.leaseEnd(x.Lease)
	}
	assert.Equal(t, "LeaseRevoked", code(never.Ticket))
	assert.Equal(t, "TicketBound", code(bound.Ticket))
}

// TestClosedSessionIsALostPeer opens a window on a session that this side has just closed.
func TestClosedSessionIsALostPeer(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	l.target.grantErr = fault.New(fault.Closed, "grant", "closed")
	lease := w.lease(time.Hour, 1)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	ev := w.leaseEnd(lease.Lease)
	assert.Equal(t, "PeerLost", ev.Error.Name)
	assert.False(t, ev.Error.MayHaveWritten)
}

// TestLateAnswerIsAborted: the answer of a push that has ended is met with ABORT and leaves nothing behind.
func TestLateAnswerIsAborted(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.source(8)
	id := w.push(ticket(1), time.Hour, 1)
	n.until(func() bool { return !l.none(wire.KindBind) })
	n.engine.CancelTransfer(w.id, id)
	assert.Equal(t, "Cancelled", w.transferEnd(id).Error.Name)
	l.bound(w, 5, 1)
	var a wire.Abort
	f := l.take(wire.KindAbort)
	require.NoError(t, f.Decode(&a))
	assert.Equal(t, uint64(5), a.Handle)
}

// TestPeerThatNeverAnswersIsGivenUp: what the node keeps for answers that are still due is bounded.
func TestPeerThatNeverAnswersIsGivenUp(t *testing.T) {
	n := newFakeNode(t, nil)
	l := n.source(8)
	w := newWorker(t, n.node, "c", small, 8)
	for i := range 256 {
		require.False(t, l.down.Load(), "after %d", i)
		id := w.push(ticket(1), time.Hour, 1)
		l.take(wire.KindBind)
		n.engine.CancelTransfer(w.id, id)
		assert.Equal(t, "Cancelled", w.transferEnd(id).Error.Name)
	}
	n.until(l.down.Load)
}

// TestLinkDownMeetsTheAnswer loses the link while BOUND is being handled: the push hears of one of them.
func TestLinkDownMeetsTheAnswer(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	for range 300 {
		l := n.source(8)
		id := w.push(ticket(1), time.Hour, 1)
		n.until(func() bool { return !l.none(wire.KindBind) })
		n.wg.Go(func() { l.Close(fault.ErrPeerLost) })
		l.bound(w, 5, 1)
		require.Equal(t, "PeerLost", w.transferEnd(id).Error.Name)
	}
}

// TestDrainingBindsNothingNew refuses a BIND that comes after Drain began.
func TestDrainingBindsNothingNew(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	lease := w.lease(time.Hour, 1)
	ctx, cancel := context.WithCancel(t.Context())
	n.wg.Go(func() { n.engine.Drain(ctx) })
	n.until(n.engine.Draining)
	l.receive(wire.KindBind, 1, bind(t, w, lease.Ticket), nil)
	var e fault.Wire
	f := l.take(wire.KindError)
	require.NoError(t, f.Decode(&e))
	assert.Equal(t, "Draining", e.Name)
	cancel()
	assert.Equal(t, "Draining", w.leaseEnd(lease.Lease).Error.Name)
}

// TestGarbageTraceparent travels nowhere and fails nothing.
func TestGarbageTraceparent(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	for i, tp := range []string{strings.Repeat("z", 1<<17), "00-00000000000000000000000000000000-0000000000000000-01", "\x00\xff"} {
		info, err := n.engine.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: 60_000, Traceparent: tp}, []uint32{uint32(i)})
		require.NoError(t, err)
		b := bind(t, w, info.Ticket)
		b.Traceparent = tp
		l.receive(wire.KindBind, 1, b, nil)
		l.take(wire.KindOK)
	}
	n.source(8)
	for _, tp := range []string{"garbage", "00-zz"} {
		info, err := n.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket(1), TimeoutMillis: 60_000, Traceparent: tp, SpanID: "zz"}, []uint32{5})
		require.NoError(t, err)
		assert.Len(t, info.TraceID, 32)
	}
}

// TestPartsOutOfRange includes those whose end does not fit into 32 bits.
func TestPartsOutOfRange(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	n.source(8)
	const most = ^uint32(0)
	for _, p := range []wire.LayerPart{{First: 1, Count: most}, {First: most, Count: 1}, {First: most, Count: most}, {First: most}, {Layer: most}} {
		p.Transfer = w.push(ticket(2), time.Hour, 1, 2)
		n.engine.PushLayer(w.id, p)
		assert.Equal(t, "InvalidArgument", w.transferEnd(p.Transfer).Error.Name, "%+v", p)
	}
}
