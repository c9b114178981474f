package peerlink

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// gate is a Dial that waits to be let through.
type gate struct {
	calls   atomic.Int32
	ended   atomic.Int32 // contexts that ended first
	release chan struct{}
}

func newGate() *gate { return &gate{release: make(chan struct{})} }

func (g *gate) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	g.calls.Add(1)
	select {
	case <-g.release:
		return (&net.Dialer{}).DialContext(ctx, network, addr)
	case <-ctx.Done():
		g.ended.Add(1)
		return nil, ctx.Err()
	}
}

type dialed struct {
	link xfer.Link
	err  error
}

func dialAsync(ctx context.Context, n *node, ref xfer.PeerRef) chan dialed {
	c := make(chan dialed, 1)
	go func() {
		l, err := n.Dial(ctx, ref)
		c <- dialed{l, err}
	}()
	return c
}

// waiting waits until that many callers share the flight to ref.
func waiting(t *testing.T, n *node, ref xfer.PeerRef, callers int) {
	t.Helper()
	eventually(t, "callers", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		f := n.flights[keyOf(&ref)]
		return f != nil && f.waiting == callers
	})
}

func TestSingleFlight(t *testing.T) {
	g := newGate()
	a, b := newNode(t, "a", epochA, func(o *Options) { o.Dial = g.dial }), newNode(t, "b", epochB)
	var calls []chan dialed
	for range 8 {
		calls = append(calls, dialAsync(context.Background(), a, b.ref()))
	}
	waiting(t, a, b.ref(), 8)
	close(g.release)
	for _, c := range calls {
		got := <-c
		require.NoError(t, got.err)
		assert.Same(t, a.h.links()[0], got.link)
	}
	assert.Same(t, a.h.links()[0], xfer.Link(dial(t, a, b.ref())), "it is used again")
	assert.Equal(t, int32(1), g.calls.Load())

	other := b.ref()
	other.Tenant = "red"
	assert.NotSame(t, a.h.links()[0], xfer.Link(dial(t, a, other)), "another tenant has another link")
}

func TestOneCallerGivesUp(t *testing.T) {
	g := newGate()
	a, b := newNode(t, "a", epochA, func(o *Options) { o.Dial = g.dial }), newNode(t, "b", epochB)
	ctx, cancel := context.WithCancel(context.Background())
	first := dialAsync(ctx, a, b.ref())
	waiting(t, a, b.ref(), 1)
	second := dialAsync(context.Background(), a, b.ref())
	waiting(t, a, b.ref(), 2)
	cancel()
	err := (<-first).err
	assert.ErrorIs(t, err, fault.ErrCancelled)
	assert.Equal(t, "b", fault.From("", err).Peer)
	close(g.release)
	require.NoError(t, (<-second).err)
	assert.Zero(t, g.ended.Load())
}

func TestEveryCallerGivesUp(t *testing.T) {
	g := newGate()
	a, b := newNode(t, "a", epochA, func(o *Options) { o.Dial = g.dial }), newNode(t, "b", epochB)
	ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(20*time.Millisecond))
	defer cancel()
	_, err := a.Dial(ctx, b.ref())
	assert.ErrorIs(t, err, fault.ErrPeerUnreachable)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = a.Dial(ctx, b.ref())
	assert.ErrorIs(t, err, fault.ErrPeerUnreachable, "a context that has ended")
	eventually(t, "the attempt ends", func() bool { return g.ended.Load() == g.calls.Load() })
	close(g.release)
	dial(t, a, b.ref())
	assert.Len(t, a.h.links(), 1)
}

// An attempt that was abandoned while its session was being opened leaves nothing behind on either side.
func TestAbandonedWhileConnecting(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	entered := make(chan struct{}, 2)
	var through atomic.Bool
	a.fab.connect = func(ctx context.Context) error {
		entered <- struct{}{}
		if through.Load() {
			return nil
		}
		<-ctx.Done()
		return nil // the session came up all the same
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := dialAsync(ctx, a, b.ref())
	<-entered
	cancel()
	assert.ErrorIs(t, (<-c).err, fault.ErrCancelled)
	m := accepted(t, b, 0)
	eventually(t, "the target's link ends", func() bool { return b.h.reason(m) != nil })
	eventually(t, "nothing is left", func() bool {
		targets, _ := b.fab.open()
		_, initiators := a.fab.open()
		return targets+initiators == 0 && len(a.snapshot(nil)) == 0
	})
	assert.Empty(t, a.h.links())
	through.Store(true)
	dial(t, a, b.ref())
}

func TestPeerDiesWhileConnecting(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	a.fab.connect = func(ctx context.Context) error {
		accepted(t, b, 0).Close(fault.New(fault.Internal, "test", "no lanes today"))
		<-ctx.Done()
		return ctx.Err()
	}
	err := dialFails(t, a, b.ref(), fault.ErrPeerLost)
	assert.ErrorContains(t, err, "no lanes today")
	assert.Empty(t, a.h.links())
}

func TestSessionThatDoesNotConnect(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	a.fab.connect = func(context.Context) error {
		return &fault.Error{Code: fault.PeerUnreachable, Op: "connect", Detail: "lane 2"}
	}
	err := dialFails(t, a, b.ref(), fault.ErrPeerUnreachable)
	assert.ErrorContains(t, err, "lane 2")
	m := accepted(t, b, 0)
	eventually(t, "the acceptor learns it", func() bool { return b.h.reason(m) != nil })
	assert.ErrorContains(t, b.h.reason(m), "lane 2")
	assert.Empty(t, a.h.links())
}

func TestSessionThatIsNotAccepted(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	b.fab.accept = fault.New(fault.ResourceExhausted, "accept", "no queue pairs")
	dialFails(t, a, b.ref(), fault.ErrResourceExhausted)
	assert.Empty(t, b.h.links())
}

func TestUnreachable(t *testing.T) {
	a := newNode(t, "a", epochA)
	ln := listen(t, "127.0.0.1:0")
	require.NoError(t, ln.Close())
	ref := xfer.PeerRef{Node: "b", Epoch: epochB, Addr: ln.Addr().String()}
	err := dialFails(t, a, ref, fault.ErrPeerUnreachable)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Equal(t, "b", err.Peer)
	assert.Contains(t, err.Error(), ref.Addr)
	ref.Addr = ""
	dialFails(t, a, ref, fault.ErrPeerUnreachable)
	ref.Node = ""
	dialFails(t, a, ref, fault.ErrInvalidArgument)
	dialFails(t, a, xfer.PeerRef{Node: "b", Addr: "x:1"}, fault.ErrInvalidArgument)
	dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: "zz", Addr: "x:1"}, fault.ErrInvalidArgument)
}

func TestPeerThatSaysNothing(t *testing.T) {
	a := newNode(t, "a", epochA, func(o *Options) { o.HelloTimeout = 30 * time.Millisecond })
	ln := listen(t, "127.0.0.1:0") // the kernel accepts
	err := dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: ln.Addr().String()}, fault.ErrPeerUnreachable)
	assert.ErrorContains(t, err, "no answer to HELLO")
}

func TestDirectoryGoesFirst(t *testing.T) {
	dead := listen(t, "127.0.0.1:0")
	require.NoError(t, dead.Close())
	b := newNode(t, "b", epochB)
	for _, c := range []struct {
		name               string
		addr, epoch        string
		ticket             string
		tried              []string
		wantUnreachable    bool
		resolved, stranger bool
	}{
		{name: "fresher address", addr: b.addr, epoch: epochB, ticket: dead.Addr().String(), resolved: true, tried: []string{b.addr}},
		{name: "ticket is right", addr: dead.Addr().String(), epoch: epochB, ticket: b.addr, resolved: true,
			tried: []string{dead.Addr().String(), b.addr}},
		{name: "another epoch in the directory", addr: dead.Addr().String(), epoch: epochA, ticket: b.addr, resolved: true, tried: []string{b.addr}},
		{name: "unknown to the directory", ticket: b.addr, tried: []string{b.addr}},
		{name: "no address in the ticket", addr: b.addr, epoch: epochB, resolved: true, tried: []string{b.addr}},
		{name: "the same", addr: b.addr, epoch: epochB, ticket: b.addr, resolved: true, tried: []string{b.addr}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var mu sync.Mutex
			var tried []string
			a := newNode(t, "a", epochA, func(o *Options) {
				o.Resolve = func(node string) (string, string, bool) {
					assert.Equal(t, "b", node)
					return c.addr, c.epoch, c.resolved
				}
				o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
					mu.Lock()
					defer mu.Unlock()
					tried = append(tried, addr)
					return (&net.Dialer{}).DialContext(ctx, network, addr)
				}
			})
			ref := b.ref()
			ref.Addr = c.ticket
			l := dial(t, a, ref)
			assert.Equal(t, c.tried, tried)
			assert.Equal(t, b.addr, l.Peer().Addr)
		})
	}
}

// The word of a node that answered says more than silence at the other address.
func TestErrorOfANodeThatAnswered(t *testing.T) {
	dead := listen(t, "127.0.0.1:0")
	require.NoError(t, dead.Close())
	b := newNode(t, "b", epochB)
	a := newNode(t, "a", epochA, func(o *Options) {
		o.Resolve = func(string) (string, string, bool) { return b.addr, epochA, true }
	})
	dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochA, Addr: dead.Addr().String()}, fault.ErrStaleEpoch)
}

// A node that came back elsewhere is known by the directory: the ticket is old, the node is not gone.
func TestNodeThatRestartedElsewhere(t *testing.T) {
	dead := listen(t, "127.0.0.1:0")
	require.NoError(t, dead.Close())
	b := newNode(t, "b", epochB)
	a := newNode(t, "a", epochA, func(o *Options) {
		o.Resolve = func(string) (string, string, bool) { return b.addr, epochB, true }
	})
	err := dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochA, Addr: dead.Addr().String()}, fault.ErrStaleEpoch)
	assert.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestReconnect(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	first := dial(t, a, b.ref())
	accepted(t, b, 0).Close(errors.New("test"))
	eventually(t, "down", func() bool { return a.h.reason(first) != nil })
	second := dial(t, a, b.ref())
	assert.NotSame(t, first, second)
	assert.NotEqual(t, first.Session(), second.Session())
	require.NoError(t, second.Send(wire.Frame{Kind: wire.KindAbort}))
	m := accepted(t, b, 1)
	eventually(t, "frame", func() bool { return len(b.h.received(m)) == 1 })
	assert.ErrorIs(t, first.Send(wire.Frame{Kind: wire.KindAbort}), fault.ErrPeerLost)
}

// A Dial that follows Close of the link never gets that link.
func TestClosedLinkIsNotFound(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	for range 50 {
		l := dial(t, a, b.ref())
		require.NoError(t, l.cause())
		l.Close(nil)
	}
	assert.Len(t, a.h.links(), 50)
}

func TestSelfLink(t *testing.T) {
	a := newNode(t, "a", epochA)
	l := dial(t, a, a.ref())
	eventually(t, "both ends", func() bool { return len(a.h.links()) == 2 })
	var m xfer.Link
	for _, x := range a.h.links() {
		if x != xfer.Link(l) {
			m = x
		}
	}
	require.NotNil(t, m.Target())
	require.NotNil(t, l.Initiator())
	assert.NotEqual(t, l.Session(), m.Session(), "the provider sees each id once")
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindBind, Request: 1}))
	eventually(t, "bind", func() bool { return len(a.h.received(m)) == 1 })
	require.NoError(t, m.Send(wire.Frame{Kind: wire.KindOK, Request: 1}))
	eventually(t, "bound", func() bool { return len(a.h.received(l)) == 1 })
}

// A link that goes down while its handler is told of it is no success.
func TestDownInLinkUp(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	a.h.onUp = func(l xfer.Link) { l.Close(fault.New(fault.NotSupported, "test", "not this one")) }
	dialFails(t, a, b.ref(), fault.ErrNotSupported)
	l := accepted(t, a, 0)
	eventually(t, "down", func() bool { return a.h.reason(l) != nil })
	m := accepted(t, b, 0)
	eventually(t, "down", func() bool { return b.h.reason(m) != nil })
	assert.ErrorContains(t, b.h.reason(m), "not this one")
}

func TestRefusedInLinkUp(t *testing.T) {
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	b.h.onUp = func(l xfer.Link) { l.Close(fault.New(fault.NotSupported, "test", "not this one")) }
	// The answer to HELLO was queued before: the dialer sees a link that ends, at the latest with its first frame.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := a.Dial(ctx, b.ref())
	if err == nil {
		l := accepted(t, a, 0)
		eventually(t, "down", func() bool { return a.h.reason(l) != nil })
		err = a.h.reason(l)
	}
	assert.ErrorContains(t, err, "not this one")
}

func TestNoDescriptorIsLeft(t *testing.T) {
	count := func() int {
		e, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		return len(e)
	}
	a, b := newNode(t, "a", epochA), newNode(t, "b", epochB)
	l := dial(t, a, b.ref())
	l.Close(nil)
	<-l.gone
	before := count()
	for i := range 20 {
		l := dial(t, a, b.ref())
		m := accepted(t, b, i+1).(*link)
		if i%2 == 0 {
			l.Close(nil)
		} else {
			m.Close(nil)
		}
		<-l.gone
		<-m.gone
		wrong := b.ref()
		wrong.Epoch = epochA
		dialFails(t, a, wrong, fault.ErrStaleEpoch)
	}
	eventually(t, "descriptors", func() bool { return count() <= before })
}
