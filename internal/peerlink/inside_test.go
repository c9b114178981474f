package peerlink

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// insider is a fabric that reaches itself inside the process.
type insider struct{ *fabric }

func (insider) Inside() bool { return true }

// withInsider gives a node "shm" besides "tcp", and counts its connections to anywhere.
func withInsider(shm *fabric, dials *sync.Map) func(*Options) {
	return func(o *Options) {
		o.Providers = append([]rdma.Provider{insider{shm}}, o.Providers...)
		o.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Store(addr, true)
			return (&net.Dialer{KeepAlive: -1}).DialContext(ctx, network, addr)
		}
	}
}

func count(m *sync.Map) (n int) {
	m.Range(func(any, any) bool { n++; return true })
	return n
}

// A node reaches itself without a connection, also where no address is known; a dial that wants another provider gets it as
// from any peer.
func TestInside(t *testing.T) {
	var dials sync.Map
	shm := newFabric("shm")
	n := newNode(t, "a", epochA, withInsider(shm, &dials))
	ref := n.ref()
	ref.Addr = ""
	d := dial(t, n, ref)
	assert.Zero(t, count(&dials))
	a := accepted(t, n, 0)
	require.Same(t, d, accepted(t, n, 1), "who takes frames hears of the link first")
	for _, l := range []xfer.Link{d, a} {
		name, reason := l.Provider()
		assert.Equal(t, "shm", name)
		assert.Contains(t, reason, "nothing leaves the process")
		assert.Equal(t, "a", l.Peer().Node)
		assert.Equal(t, epochA, l.Peer().Epoch)
		assert.Equal(t, "blue", l.Peer().Tenant)
	}
	assert.NotNil(t, d.Initiator())
	assert.Nil(t, d.Target())
	assert.Nil(t, a.Initiator())
	assert.NotNil(t, a.Target())
	assert.NotEqual(t, d.Session(), a.Session())
	assert.Same(t, d, dial(t, n, ref))

	named := ref
	named.Provider = "shm"
	assert.Same(t, d, dial(t, n, named))
	d.Close(nil)
	eventually(t, "the link to go", func() bool { return n.h.reason(d) != nil && n.h.reason(a) != nil })
	_, reason := dial(t, n, named).Provider()
	assert.Contains(t, reason, "the only one that was allowed")

	ref.Addr = n.addr
	for _, change := range []func(r *xfer.PeerRef){func(r *xfer.PeerRef) { r.Provider = "tcp" }, func(r *xfer.PeerRef) { r.Without = []string{"shm"} }} {
		other := ref
		change(&other)
		name, reason := dial(t, n, other).Provider()
		assert.Equal(t, "tcp", name)
		assert.NotContains(t, reason, "process")
	}
	assert.Equal(t, 1, count(&dials))
	stale := ref
	stale.Epoch = epochB
	dialFails(t, n, stale, fault.ErrStaleEpoch)
}

// Frames keep their order, both ways, and what is sent from the handler itself too.
func TestInsideFramesInOrder(t *testing.T) {
	var dials sync.Map
	shm := newFabric("shm")
	n := newNode(t, "a", epochA, withInsider(shm, &dials))
	const frames = 3000
	n.h.onFrame = func(l xfer.Link, f wire.Frame) {
		if f.Kind == wire.KindBind {
			assert.NoError(t, l.Send(wire.Frame{Kind: wire.KindOK, Request: f.Request, Array: f.Array}))
		}
	}
	d := dial(t, n, n.ref())
	a := accepted(t, n, 0)
	var wg sync.WaitGroup
	array := []byte{1, 2, 3}
	wg.Go(func() {
		for i := range uint64(frames) {
			assert.NoError(t, d.Send(wire.Frame{Kind: wire.KindBind, Request: i + 1, Array: array}))
			if i%1000 == 0 {
				eventually(t, "answers", func() bool { return len(n.h.received(d)) >= int(i) })
			}
		}
	})
	wg.Wait()
	eventually(t, "answers", func() bool { return len(n.h.received(d)) == frames })
	for i, f := range n.h.received(d) {
		require.Equal(t, uint64(i+1), f.Request)
		require.Same(t, &array[0], &f.Array[0], "nothing is copied")
	}
	require.Len(t, n.h.received(a), frames)
}

// Whichever end is closed, both go down once, behind the frames that were sent before, and the other end has the reason.
func TestInsideLinkDownOnce(t *testing.T) {
	for name, end := range map[string]func(n *node, d, a xfer.Link){
		"dialer":   func(_ *node, d, _ xfer.Link) { d.Close(fault.New(fault.Cancelled, "test", "enough")) },
		"acceptor": func(_ *node, _, a xfer.Link) { a.Close(fault.New(fault.Cancelled, "test", "enough")) },
		"both":     func(_ *node, d, a xfer.Link) { go d.Close(nil); a.Close(nil); d.Close(nil) },
		"handler": func(n *node, d, _ xfer.Link) {
			assert.NoError(t, d.Send(wire.Frame{Kind: wire.KindFin, Request: 99}))
		},
		"violation": func(n *node, d, _ xfer.Link) { assert.NoError(t, d.Send(wire.Frame{Kind: wire.KindDone})) },
		"links": func(n *node, _, _ xfer.Link) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			assert.NoError(t, n.Links.Close(ctx))
		},
	} {
		t.Run(name, func(t *testing.T) {
			var dials sync.Map
			shm := newFabric("shm")
			n := newNode(t, "a", epochA, withInsider(shm, &dials))
			n.h.onFrame = func(l xfer.Link, f wire.Frame) {
				if f.Request == 99 {
					l.Close(fault.New(fault.Cancelled, "test", "enough"))
				}
			}
			d := dial(t, n, n.ref())
			a := accepted(t, n, 0)
			for i := range uint64(50) {
				require.NoError(t, d.Send(wire.Frame{Kind: wire.KindFin, Request: i}))
			}
			end(n, d, a)
			eventually(t, "both ends to go", func() bool { return n.h.reason(d) != nil && n.h.reason(a) != nil })
			assert.Error(t, d.Send(wire.Frame{Kind: wire.KindFin}))
			assert.Error(t, a.Send(wire.Frame{Kind: wire.KindDone}))
			targets, initiators := shm.open()
			assert.Zero(t, targets+initiators, "sessions are open")
			if name == "dialer" {
				assert.Len(t, n.h.received(a), 50)
				assert.ErrorIs(t, n.h.reason(a), fault.ErrPeerLost)
				assert.Contains(t, n.h.reason(a).Error(), "enough")
				assert.ErrorIs(t, n.h.reason(d), fault.ErrCancelled)
			}
			if name != "links" {
				assert.NotSame(t, d, dial(t, n, n.ref()))
			}
		})
	}
}

// A handler that takes nothing costs the link, and Send never waits for it.
func TestInsideQueueOverflow(t *testing.T) {
	for name, change := range map[string]func(*Options){"frames": func(o *Options) { o.MaxQueue = 10 }, "bytes": func(o *Options) { o.MaxQueueBytes = 1000 }} {
		t.Run(name, func(t *testing.T) {
			var dials sync.Map
			stuck := make(chan struct{})
			n := newNode(t, "a", epochA, withInsider(newFabric("shm"), &dials), change)
			n.h.onFrame = func(xfer.Link, wire.Frame) { <-stuck }
			d := dial(t, n, n.ref())
			a := accepted(t, n, 0)
			var err error
			for i := 0; err == nil && i < 1000; i++ {
				err = d.Send(wire.Frame{Kind: wire.KindFin, Array: make([]byte, 100)})
			}
			require.ErrorIs(t, err, fault.ErrResourceExhausted)
			eventually(t, "the end that is not stuck to go", func() bool { return n.h.reason(d) != nil })
			assert.NoError(t, n.h.reason(a), "its handler is inside a frame")
			close(stuck)
			eventually(t, "the other", func() bool { return n.h.reason(a) != nil })
		})
	}
}

// Drain is told inside the process too, and links are counted.
func TestInsideDrain(t *testing.T) {
	var dials sync.Map
	n := newNode(t, "a", epochA, withInsider(newFabric("shm"), &dials), func(o *Options) { o.MaxLinks = 3 })
	d := dial(t, n, n.ref())
	second := n.ref()
	second.Tenant = "red"
	e := dialFails(t, n, second, fault.ErrResourceExhausted) // a link has two ends
	assert.True(t, strings.Contains(e.Detail, "3 links"), e.Detail)
	eventually(t, "the half that was made to go", func() bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return len(n.Links.links) == 2
	})
	n.Drain()
	eventually(t, "the bye", func() bool { return d.bye.Load() })
	dialFails(t, n, n.ref(), fault.ErrDraining)
	require.NoError(t, d.Send(wire.Frame{Kind: wire.KindFin}), "the link goes on")
	a := accepted(t, n, 0)
	eventually(t, "the frame", func() bool {
		f := n.h.received(a)
		return len(f) > 0 && f[len(f)-1].Kind == wire.KindFin
	})
}
