package peerlink

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// quick makes heartbeats short, for tests that wait for one to be missed.
func quick(o *Options) { o.HeartbeatEvery = 20 * time.Millisecond }

// often makes many heartbeats of which none is missed.
func often(o *Options) { o.HeartbeatEvery, o.HeartbeatMisses = 20*time.Millisecond, 1000 }

// never leaves the heartbeat out.
func never(o *Options) { o.HeartbeatEvery = time.Hour }

// The largest block list passes, and heartbeats that wait behind it harm nobody, even where the queue holds no more.
func TestLargestArray(t *testing.T) {
	a, b := newNode(t, "a", epochA, often), newNode(t, "b", epochB, often, func(o *Options) { o.MaxQueueBytes = 1 << 20 })
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0)
	require.NoError(t, m.Send(wire.Frame{Kind: wire.KindOK, Request: 3, Array: make([]byte, wire.PeerLimits.Array)}))
	eventually(t, "frame", func() bool { return len(a.h.received(l)) == 1 || a.h.reason(l) != nil })
	require.NoError(t, a.h.reason(l))
	assert.Len(t, a.h.received(l)[0].Array, int(wire.PeerLimits.Array))
}

// rawLink is a link to n whose other end the test plays.
func rawLink(t *testing.T, n *node, index int) (net.Conn, xfer.Link) {
	t.Helper()
	c := raw(t, n.addr)
	h := helloTo(n)
	send(t, c, frame(t, wire.KindHello, 1, &h, nil))
	require.Equal(t, wire.KindHelloOK, receive(t, c).Kind)
	return c, accepted(t, n, index)
}

func waitDown(t *testing.T, n *node, l xfer.Link) error {
	t.Helper()
	eventually(t, "link down", func() bool { return n.h.reason(l) != nil })
	return n.h.reason(l)
}

func TestSilentPeerIsLost(t *testing.T) {
	b := newNode(t, "b", epochB, quick)
	c, l := rawLink(t, b, 0)
	go func() { _, _ = io.Copy(io.Discard, c) }() // it reads, as the kernel of a stopped process does for a while
	err := waitDown(t, b, l)
	assert.ErrorIs(t, err, fault.ErrPeerLost)
	assert.ErrorContains(t, err, "heartbeat")
	assert.Equal(t, "raw", fault.From("", err).Peer)
	_ = c.Close()

	// The same on the side that dialed.
	a := newNode(t, "a", epochA, quick)
	addr := peer(t, func(h wire.Hello) []byte {
		ok := goodAnswer(h)
		return frame(t, wire.KindHelloOK, helloRequest, &ok, nil)
	}, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	d, err := a.Dial(ctx, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: addr})
	if err == nil { // else it was lost before it was up
		err = waitDown(t, a, d)
	}
	assert.ErrorIs(t, err, fault.ErrPeerLost)
	assert.ErrorContains(t, err, "heartbeat")
}

// A peer that sends its heartbeats and leaves its socket full is lost too.
func TestPeerThatDoesNotRead(t *testing.T) {
	b := newNode(t, "b", epochB, quick)
	c, l := rawLink(t, b, 0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := c.Write(wire.Append(nil, wire.Frame{Kind: wire.KindOK, Request: PingBit | 1})); err != nil {
				return
			}
		}
	})
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindDone, Array: make([]byte, 60<<20)}))
	assert.ErrorIs(t, waitDown(t, b, l), fault.ErrPeerLost)
}

func TestCloseDoesNotWaitForAFullSocket(t *testing.T) {
	b := newNode(t, "b", epochB, never)
	_, l := rawLink(t, b, 0)
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindDone, Array: make([]byte, 60<<20)}))
	l.Close(errors.New("test"))
	assert.EqualError(t, waitDown(t, b, l), "test")
}

func TestQueueOverflow(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"frames": func(o *Options) { o.MaxQueue = 4 },
		"bytes":  func(o *Options) { o.MaxQueueBytes = 1 << 20 },
	} {
		t.Run(name, func(t *testing.T) {
			b := newNode(t, "b", epochB, change, never)
			_, l := rawLink(t, b, 0)
			eventually(t, "the answer has left", func() bool {
				m := l.(*link)
				m.mu.Lock()
				defer m.mu.Unlock()
				return m.frames == 0
			})
			big := wire.Frame{Kind: wire.KindDone, Array: make([]byte, 60<<20)}
			require.NoError(t, l.Send(big), "what is taken last may exceed the bound")
			var err error
			for i := 0; err == nil && i < 100; i++ {
				err = l.Send(wire.Frame{Kind: wire.KindDone, Array: make([]byte, 64<<10)})
			}
			require.ErrorIs(t, err, fault.ErrResourceExhausted)
			assert.Equal(t, "raw", fault.From("", err).Peer)
			assert.ErrorIs(t, l.Send(wire.Frame{Kind: wire.KindDone}), fault.ErrResourceExhausted, "it stays down")
			assert.ErrorIs(t, waitDown(t, b, l), fault.ErrResourceExhausted)
		})
	}
}

// A handler that takes its time is not taken for a dead peer, nor does it make this node look dead.
func TestSlowHandlerIsNoSilence(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB, never)
	entered, release := make(chan struct{}), make(chan struct{})
	b.h.onFrame = func(xfer.Link, wire.Frame) {
		close(entered)
		<-release
	}
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0).(*link)
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindFin}))
	<-entered
	for range 10 * b.opt.HeartbeatMisses {
		m.tick()
	}
	require.NoError(t, m.cause())
	close(release)
	eventually(t, "frame", func() bool { return len(b.h.received(m)) == 1 })
}

func TestHeartbeatsStayInside(t *testing.T) {
	b := newNode(t, "b", epochB, often)
	c, l := rawLink(t, b, 0)
	f, err := wire.ReadFrame(c, wire.PeerLimits)
	require.NoError(t, err)
	require.Equal(t, wire.KindPing, f.Kind)
	require.NotZero(t, f.Request&PingBit)
	send(t, c, wire.Append(nil, wire.Frame{Kind: wire.KindOK, Request: f.Request}))
	send(t, c, wire.Append(nil, wire.Frame{Kind: wire.KindPing, Request: 5}))
	assert.Equal(t, wire.Frame{Kind: wire.KindOK, Request: 5}, receive(t, c))
	send(t, c, wire.Append(nil, wire.Frame{Kind: wire.KindOK, Request: 6}))
	eventually(t, "the handler's own answer", func() bool { return len(b.h.received(l)) == 1 })
	assert.Equal(t, uint64(6), b.h.received(l)[0].Request)
}

func TestIdleLinksLive(t *testing.T) {
	a, b := newNode(t, "a", epochA, often), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	m := accepted(t, b, 0).(*link)
	eventually(t, "a heartbeat", func() bool { return m.heard.Load() })
	m.heard.Store(false)
	eventually(t, "another", func() bool { return m.heard.Load() })
	assert.NoError(t, l.cause())
	assert.Empty(t, b.h.received(m))
}

// No timer runs while there are no links.
func TestIdleNodeHasNoTimer(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	beating := func(n *node) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.stopBeat != nil
	}
	assert.False(t, beating(a))
	for range 3 {
		l := dial(t, a, b.ref())
		assert.True(t, beating(a))
		l.Close(nil)
		<-l.gone
		eventually(t, "stopped", func() bool { return !beating(a) && !beating(b) })
	}
}
