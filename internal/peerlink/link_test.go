package peerlink

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

func TestFramesInOrder(t *testing.T) {
	rng := testseed.New(t)
	a, b := newNode(t, "a", epochA, often), newNode(t, "b", epochB, often)
	const n = 2000
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	payload := make([]byte, 3*writeChunk)
	for i := range payload {
		payload[i] = byte(rng.Uint32())
	}
	sizes := make([]int, n)
	var wg sync.WaitGroup
	for _, x := range []struct {
		l       xfer.Link
		kind    wire.Kind
		largest int
	}{{l, wire.KindFin, wire.MaxNotification}, {m, wire.KindEnded, len(payload)}} {
		for i := range sizes {
			sizes[i] = rng.IntN(64)
			if rng.IntN(100) == 0 {
				sizes[i] = rng.IntN(x.largest + 1)
			}
		}
		send := append([]int(nil), sizes...)
		wg.Go(func() {
			for i, k := range send {
				assert.NoError(t, x.l.Send(wire.Frame{Kind: x.kind, Request: uint64(i), JSON: []byte("{}"), Array: payload[:k]}))
			}
		})
		other, h := m, b.h
		if x.l == m {
			other, h = l, a.h
		}
		wg.Go(func() {
			eventually(t, "frames", func() bool { return len(h.received(other)) == n })
			for i, f := range h.received(other) {
				if f.Kind != x.kind || f.Request != uint64(i) || !bytes.Equal(f.Array, payload[:send[i]]) {
					t.Errorf("frame %d: %s %d, %d bytes, want %d", i, f.Kind, f.Request, len(f.Array), send[i])
					return
				}
			}
		})
	}
	wg.Wait()
}

// Frames that the accepting handler sends from LinkUp come behind HELLO_OK.
func TestSendFromLinkUp(t *testing.T) {
	b := newNode(t, "b", epochB)
	b.h.onUp = func(l xfer.Link) { assert.NoError(t, l.Send(wire.Frame{Kind: wire.KindPeerBye})) }
	c := raw(t, b.addr)
	h := helloTo(b)
	send(t, c, frame(t, wire.KindHello, 4, &h, nil))
	assert.Equal(t, wire.KindHelloOK, receive(t, c).Kind)
	assert.Equal(t, wire.KindPeerBye, receive(t, c).Kind)
}

// A dialer's handler hears of a frame after LinkUp has returned, however early it was sent.
func TestAnswerDuringLinkUp(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	b.h.onFrame = func(l xfer.Link, f wire.Frame) {
		assert.NoError(t, l.Send(wire.Frame{Kind: wire.KindOK, Request: f.Request}))
	}
	a.h.onUp = func(l xfer.Link) {
		require.NoError(t, l.Send(wire.Frame{Kind: wire.KindBind, Request: 1}))
		eventually(t, "the answer is under way", func() bool { return l.(*link).busy.Load() })
	}
	l := dial(t, a, b.ref())
	eventually(t, "answer", func() bool { return len(a.h.received(l)) == 1 })
}

// Every kind that a source may say reaches the target, in the order in which it was sent.
func TestKindsOfASource(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	kinds := []wire.Kind{wire.KindBind, wire.KindFin, wire.KindRelease, wire.KindAbort}
	for _, k := range kinds {
		require.NoError(t, l.Send(wire.Frame{Kind: k, Request: 1}))
	}
	eventually(t, "frames", func() bool { return len(b.h.received(m)) == len(kinds) })
	for i, f := range b.h.received(m) {
		assert.Equal(t, kinds[i], f.Kind)
	}
}

func TestViolations(t *testing.T) {
	b := newNode(t, "b", epochB)
	garbage := append([]byte("nonsense"), make([]byte, 100)...)
	long := frame(t, wire.KindFin, 0, nil, nil)
	binary.LittleEndian.PutUint32(long[20:], wire.PeerLimits.Array+1)
	fds := frame(t, wire.KindFin, 0, nil, nil)
	fds[24] = 1
	for i, c := range []struct {
		name  string
		bytes []byte
		field string
	}{
		{"garbage", garbage, "magic"},
		{"too long", long, "array_length"},
		{"descriptors", fds, "fd_count"},
		{"local kind", frame(t, wire.KindLease, 3, nil, nil), "kind"},
		{"unknown kind", frame(t, wire.Kind(0xEE), 3, nil, nil), "kind"},
		{"second HELLO", frame(t, wire.KindHello, 3, nil, nil), "kind"},
		{"the target's kind", frame(t, wire.KindDone, 0, nil, nil), "kind"},
		{"the owner's kind", frame(t, wire.KindClaim, 0, nil, nil), "kind"},
		{"FIND without id", frame(t, wire.KindFind, 0, nil, nil), "request_id"},
		{"BIND without id", frame(t, wire.KindBind, 0, nil, nil), "request_id"},
		{"RELEASE without id", frame(t, wire.KindRelease, 0, nil, nil), "request_id"},
		{"PING without id", frame(t, wire.KindPing, 0, nil, nil), "request_id"},
		{"ERROR without body", frame(t, wire.KindError, 0, nil, nil), "body"},
	} {
		conn, l := rawLink(t, b, i)
		send(t, conn, c.bytes)
		f := receive(t, conn)
		assert.Equal(t, wire.KindError, f.Kind, c.name)
		assert.Zero(t, f.Request)
		w := body[fault.Wire](t, f)
		assert.Equal(t, fault.ProtocolViolation, w.Code, c.name)
		assert.Equal(t, c.field, w.Field, c.name)
		ends(t, conn)
		_ = conn.Close()
		assert.ErrorIs(t, waitDown(t, b, l), fault.ErrProtocolViolation)
		assert.Empty(t, b.h.received(l))
	}

	// The other direction: what a source may not be sent.
	a := newNode(t, "a", epochA)
	for _, kind := range []wire.Kind{wire.KindBind, wire.KindFin, wire.KindRelease, wire.KindAbort} {
		l := dial(t, a, b.ref())
		m := accepted(t, b, len(b.h.links())-1) // up before the dialer's
		require.NoError(t, m.Send(wire.Frame{Kind: kind, Request: 1}))
		assert.ErrorIs(t, waitDown(t, a, l), fault.ErrProtocolViolation)
		assert.ErrorIs(t, waitDown(t, b, m), fault.ErrPeerLost)
	}
}

// TestEveryKindHasItsDirection sends each kind between daemons in its own direction: it arrives.
func TestEveryKindHasItsDirection(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	fromSource := []wire.Kind{wire.KindBind, wire.KindFin, wire.KindAbort, wire.KindRelease, wire.KindGrant, wire.KindGrantRenew, wire.KindGrantRevoke,
		wire.KindClaimed, wire.KindFind, wire.KindOpenBlock, wire.KindTraceOf}
	fromTarget := []wire.Kind{wire.KindDone, wire.KindEnded, wire.KindGrantLayers, wire.KindGrantEnded, wire.KindClaim, wire.KindOK, wire.KindError}
	for _, k := range fromSource {
		require.NoError(t, l.Send(wire.Frame{Kind: k, Request: 5}))
	}
	for _, k := range fromTarget {
		require.NoError(t, m.Send(wire.Frame{Kind: k, Request: 5}))
	}
	kinds := func(all []wire.Frame) (out []wire.Kind) {
		for _, f := range all {
			out = append(out, f.Kind)
		}
		return out
	}
	eventually(t, "frames", func() bool { return len(b.h.received(m)) == len(fromSource) && len(a.h.received(l)) == len(fromTarget) })
	assert.Equal(t, fromSource, kinds(b.h.received(m)))
	assert.Equal(t, fromTarget, kinds(a.h.received(l)))
}

// A target has nothing to say before the source has asked for something.
func TestFrameBeforeLinkUp(t *testing.T) {
	for kind, want := range map[wire.Kind]error{wire.KindDone: fault.ErrProtocolViolation, wire.KindPeerBye: fault.ErrDraining} {
		a := newNode(t, "a", epochA)
		a.fab.connect = func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}
		addr := peer(t, func(h wire.Hello) []byte {
			ok := goodAnswer(h)
			return append(frame(t, wire.KindHelloOK, helloRequest, &ok, nil), frame(t, kind, 0, nil, nil)...)
		}, func(c net.Conn) { ends(t, c) })
		dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: addr}, want)
		assert.Empty(t, a.h.links())
	}
}

func TestLinkDownOnce(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	for i := range 20 {
		l := dial(t, a, b.ref())
		m := accepted(t, b, i)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() { l.Close(nil) })
			wg.Go(func() { m.Close(nil) })
			wg.Go(func() { _ = l.Send(wire.Frame{Kind: wire.KindFin}) })
			wg.Go(func() { _ = l.conn.Close() })
		}
		wg.Wait()
		waitDown(t, a, l)
		waitDown(t, b, m)
		assert.Error(t, l.Send(wire.Frame{Kind: wire.KindFin}))
	}
} // the recorder objects to a second LinkDown, or to a frame behind it

func TestCloseFromTheHandler(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	b.h.onFrame = func(l xfer.Link, _ wire.Frame) { l.Close(fault.New(fault.LeaseExpired, "test", "enough")) }
	l := dial(t, a, b.ref())
	for range 10 {
		_ = l.Send(wire.Frame{Kind: wire.KindFin})
	}
	err := waitDown(t, a, l)
	assert.ErrorIs(t, err, fault.ErrPeerLost)
	assert.ErrorContains(t, err, "enough", "the peer's reason is told")
	m := accepted(t, b, 0)
	assert.ErrorIs(t, waitDown(t, b, m), fault.ErrLeaseExpired)
	assert.Len(t, b.h.received(m), 1, "no frame after Close")
}

func TestQueuedFramesLeaveBeforeClose(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	for range 100 {
		require.NoError(t, l.Send(wire.Frame{Kind: wire.KindFin, Array: make([]byte, 1000)}))
	}
	l.Close(nil)
	m := accepted(t, b, 0)
	assert.ErrorIs(t, waitDown(t, b, m), fault.ErrPeerLost)
	assert.Len(t, b.h.received(m), 100)
}

func TestSessionEndsBeforeLinkDown(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	var checked atomic.Int32
	closed := func(l xfer.Link, _ error) {
		if t := l.Target(); t != nil {
			if t.(targetSide).closes.Load() == 1 && t.Fence(3) == nil {
				checked.Add(1)
			}
		} else if l.Initiator().(initiatorSide).closes.Load() == 1 {
			checked.Add(1)
		}
	}
	a.h.onDown, b.h.onDown = closed, closed
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	l.Close(nil)
	waitDown(t, a, l)
	waitDown(t, b, m)
	assert.Equal(t, int32(2), checked.Load())
}

// A link whose handler is stuck is fenced all the same.
func TestSessionEndsWhileTheHandlerIsStuck(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	entered, release := make(chan struct{}), make(chan struct{})
	b.h.onFrame = func(xfer.Link, wire.Frame) {
		close(entered)
		<-release
	}
	l := dial(t, a, b.ref())
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindFin}))
	<-entered
	m := accepted(t, b, 0)
	m.Close(nil)
	eventually(t, "session closed", func() bool { return m.Target().(targetSide).closes.Load() == 1 })
	assert.NoError(t, b.h.reason(m))
	close(release)
	waitDown(t, b, m)
}

func TestManyLinksComeAndGo(t *testing.T) {
	rng := testseed.New(t)
	a, b := newNode(t, "a", epochA, often), newNode(t, "b", epochB)
	tenants := []string{"t0", "t1", "t2", "t3"}
	var wg sync.WaitGroup
	for range 4 {
		seed := rng.Uint64()
		wg.Go(func() {
			for i := range 60 {
				ref := b.ref()
				ref.Tenant = tenants[(seed+uint64(i))%4]
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				if (seed>>3+uint64(i))%5 == 0 {
					cancel()
				}
				l, err := a.Dial(ctx, ref)
				if err == nil {
					_ = l.Send(wire.Frame{Kind: wire.KindAbort})
					if (seed>>7+uint64(i))%3 == 0 {
						l.Close(nil)
					}
				}
				cancel()
			}
		})
	}
	wg.Wait()
}

func TestDrain(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	toB, toA := dial(t, a, b.ref()), dial(t, b, a.ref())
	fromA, fromB := accepted(t, b, 0), accepted(t, a, 1)
	b.Drain()
	b.Drain()
	for _, l := range []xfer.Link{toB, fromB} {
		eventually(t, "BYE", func() bool { return len(a.h.received(l)) == 1 })
		assert.Equal(t, wire.KindPeerBye, a.h.received(l)[0].Kind)
	}
	assert.Equal(t, "b", dialFails(t, a, b.ref(), fault.ErrDraining).Peer, "known from BYE")
	other := b.ref()
	other.Tenant = "red"
	assert.Equal(t, "b", dialFails(t, a, other, fault.ErrDraining).Peer, "the peer says so")
	dialFails(t, b, a.ref(), fault.ErrDraining)
	require.NoError(t, fromA.Send(wire.Frame{Kind: wire.KindDone}), "what is there goes on")
	eventually(t, "frame", func() bool { return len(a.h.received(toB)) == 2 })
	require.NoError(t, toA.Send(wire.Frame{Kind: wire.KindFin}))
	eventually(t, "frame", func() bool { return len(a.h.received(fromB)) == 2 })
}

func TestClose(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, b.Close(ctx))
	assert.ErrorIs(t, b.h.reason(m), fault.ErrClosed, "LinkDown has returned")
	err := waitDown(t, a, l)
	assert.ErrorIs(t, err, fault.ErrPeerLost)
	assert.ErrorContains(t, err, "has shut down")
	dialFails(t, b, a.ref(), fault.ErrClosed)
	dialFails(t, a, b.ref(), fault.ErrPeerUnreachable)
	assert.ErrorIs(t, b.Serve(ctx, listen(t, "127.0.0.1:0")), fault.ErrClosed)
	c1, c2 := net.Pipe()
	assert.ErrorIs(t, b.ServeConn(ctx, c1), fault.ErrClosed)
	_ = c2.Close()
	require.NoError(t, b.Close(ctx), "again")
}

func TestCloseEndsDials(t *testing.T) {
	g := newGate()
	a, b := newNode(t, "a", epochA, func(o *Options) { o.Dial = g.dial }), newNode(t, "b", epochB)
	c := dialAsync(context.Background(), a, b.ref())
	waiting(t, a, b.ref(), 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, a.Close(ctx))
	assert.ErrorIs(t, (<-c).err, fault.ErrClosed)
}

func TestCloseGivesUpWaiting(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	release := make(chan struct{})
	b.h.onDown = func(xfer.Link, error) { <-release }
	dial(t, a, b.ref())
	accepted(t, b, 0)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, b.Close(ctx), fault.ErrDeadlineExceeded)
	close(release)
}

// A dialer has nothing larger to send than a notification, so a larger claim is refused at its header.
func TestDialersArrayIsBounded(t *testing.T) {
	b := newNode(t, "b", epochB, never)
	c, l := rawLink(t, b, 0)
	send(t, c, frame(t, wire.KindFin, 0, nil, make([]byte, wire.MaxNotification)))
	eventually(t, "the largest notification", func() bool { return len(b.h.received(l)) == 1 })
	big := frame(t, wire.KindBind, 1, nil, make([]byte, wire.MaxNotification+1))
	send(t, c, big[:wire.HeaderSize])
	f := receive(t, c)
	assert.Equal(t, wire.KindError, f.Kind)
	assert.Equal(t, "array_length", body[fault.Wire](t, f).Field)
	assert.ErrorIs(t, waitDown(t, b, l), fault.ErrProtocolViolation)
}
