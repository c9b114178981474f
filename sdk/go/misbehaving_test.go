package kvxfer

import (
	"context"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// TestViolations: what is not the protocol ends the connection with a typed error, and everything that waits for it.
func TestViolations(t *testing.T) {
	raw := func(f wire.Frame) []byte { return wire.Append(nil, f) }
	badMagic := raw(wire.Frame{Kind: wire.KindOK})
	badMagic[0] = 'X'
	withFD := raw(wire.Frame{Kind: wire.KindOK, FDs: 1})
	for name, bytes := range map[string][]byte{
		"an answer nobody asked for": raw(wire.Frame{Kind: wire.KindOK, Request: 99}),
		"a request":                  raw(wire.Frame{Kind: wire.KindPing, Request: 5}),
		"magic":                      badMagic,
		"a descriptor":               withFD,
		"an event without a body":    raw(wire.Frame{Kind: wire.KindEventLease, JSON: []byte("nonsense")}),
		"layers cut short":           raw(wire.Frame{Kind: wire.KindEventLayers, Array: []byte{1, 2, 3}}),
		"an error without a body":    raw(wire.Frame{Kind: wire.KindError, JSON: []byte("[]")}),
	} {
		t.Run(name, func(t *testing.T) {
			d := startFake(t)
			c, cache := d.attach()
			lease, err := cache.Lease(within(t), []int{1}, LeaseOptions{})
			require.NoError(t, err)
			d.sendRaw(bytes)
			_, err = lease.Wait(t.Context())
			assert.ErrorIs(t, err, ErrProtocolViolation)
			_, err = c.Ping(within(t))
			assert.ErrorIs(t, err, ErrProtocolViolation)
		})
	}
	t.Run("layers out of range", func(t *testing.T) {
		d := startFake(t)
		_, cache := d.attach()
		lease, err := cache.Lease(within(t), []int{1}, LeaseOptions{})
		require.NoError(t, err)
		d.event(wire.KindEventLayers, nil, wire.AppendLayersVisible(nil, wire.LayersVisible{Lease: lease.number, Layers: []uint32{3}}))
		_, err = lease.Wait(t.Context())
		assert.ErrorIs(t, err, ErrProtocolViolation)
	})
	t.Run("another size of blocks", func(t *testing.T) {
		d := startFake(t)
		d.set(func() {
			d.special[wire.KindRegisterCache] = func(wire.Frame) (any, []byte, bool) { return &wire.CacheInfo{Cache: 1, BlockBytes: 1}, nil, true }
		})
		c := dial(t, d.socket)
		_, err := c.AllocateCache(within(t), CacheSpec{Name: "c", Model: "m", Layout: testLayout, NumBlocks: 1})
		assert.ErrorIs(t, err, ErrProtocolViolation)
	})
	t.Run("a ticket that is absent", func(t *testing.T) {
		d := startFake(t)
		d.set(func() {
			d.special[wire.KindLease] = func(wire.Frame) (any, []byte, bool) { return &wire.LeaseInfo{Lease: 1}, nil, true }
		})
		_, cache := d.attach()
		_, err := cache.Lease(within(t), []int{1}, LeaseOptions{})
		assert.ErrorIs(t, err, ErrProtocolViolation)
	})
	for name, hello := range map[string]wire.Hello{"version": {Version: 2}, "no version": {}} {
		t.Run(name, func(t *testing.T) {
			d := startFake(t)
			d.set(func() { d.hello = hello })
			_, err := Dial(within(t), d.socket)
			assert.ErrorIs(t, err, ErrVersionMismatch)
		})
	}
	t.Run("refused", func(t *testing.T) {
		d := startFake(t)
		d.set(func() { d.refuse[wire.KindHello] = fault.New(fault.PermissionDenied, "hello", "not you") })
		_, err := Dial(within(t), d.socket)
		assert.ErrorIs(t, err, ErrPermissionDenied)
	})
	t.Run("nobody", func(t *testing.T) {
		_, err := Dial(within(t), "/nonexistent/socket")
		assert.ErrorIs(t, err, ErrDaemonUnavailable)
		assert.ErrorContains(t, err, "kvxfer serve")
		_, err = Dial(within(t), strings.Repeat("x", 108))
		assert.ErrorIs(t, err, ErrInvalidArgument)
	})
}

// TestFailedDialLeavesNothing: no descriptor of a connection that did not become a client stays open, nor of one that was closed.
func TestFailedDialLeavesNothing(t *testing.T) {
	d := startFake(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	before := openFDs(t)
	for name, c := range map[string]struct {
		set func()
		ctx context.Context
		err error
	}{
		"another version": {func() { d.hello.Version = 2 }, within(t), ErrVersionMismatch},
		"refused":         {func() { d.refuse[wire.KindHello] = fault.New(fault.PermissionDenied, "hello", "not you") }, within(t), ErrPermissionDenied},
		"no answer":       {func() { d.silent[wire.KindHello] = true }, soon(t), ErrDaemonUnavailable},
		"given up":        {func() {}, ended, ErrCancelled},
		"well":            {func() {}, within(t), nil},
	} {
		d.set(func() { d.hello.Version = 1; delete(d.refuse, wire.KindHello); delete(d.silent, wire.KindHello) })
		d.set(c.set)
		client, err := Dial(c.ctx, d.socket)
		require.ErrorIs(t, err, c.err, name)
		if err == nil {
			require.NoError(t, client.Close())
		}
		// The fake closes its side when it has read the end.
		require.Eventually(t, func() bool { return openFDs(t) == before }, patience, time.Millisecond, name)
	}
}

// TestNewerDaemon: events and fields of a newer version are passed over.
func TestNewerDaemon(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	lease, err := cache.Lease(within(t), []int{1}, LeaseOptions{})
	require.NoError(t, err)
	d.event(wire.Kind(0x4f), nil, []byte("news"))
	d.event(wire.KindEventLease, map[string]any{"lease": lease.number, "bytes": 5, "generation": 9, "colour": []int{1}}, []byte("note"))
	res, err := lease.Wait(within(t))
	require.NoError(t, err)
	assert.Equal(t, LeaseResult{Blocks: 1, Bytes: 5, Notification: []byte("note"), Generation: 9, Guarantee: "full"}, res)
	d.set(func() {
		d.refuse[wire.KindStatus] = &fault.Error{Code: 999, Op: "status", Detail: "of a later version"}
	})
	_, err = c.Status(within(t))
	assert.ErrorIs(t, err, ErrInternal, "a code that is not known")
}

// TestAnswersInAnyOrder: many callers ask at a time, the daemon answers in an order of its own, and each gets its own.
func TestAnswersInAnyOrder(t *testing.T) {
	seed := testseed.Seed(t)
	d := startFake(t)
	var mu sync.Mutex
	r := rand.New(rand.NewPCG(seed, 1))
	var waiting []wire.Frame
	d.set(func() {
		d.special[wire.KindLookup] = func(f wire.Frame) (any, []byte, bool) {
			mu.Lock()
			defer mu.Unlock()
			waiting = append(waiting, f)
			return nil, nil, false
		}
	})
	answer := func() bool { // one of them
		mu.Lock()
		defer mu.Unlock()
		if len(waiting) == 0 {
			return false
		}
		i := r.IntN(len(waiting))
		f := waiting[i]
		waiting = append(waiting[:i], waiting[i+1:]...)
		if r.IntN(4) == 0 {
			d.send(wire.NewError(f.Request, fault.New(fault.NotFound, "lookup", "%x", f.Array)))
		} else {
			d.reply(f.Request, wire.KindOK, &wire.LookupInfo{Holders: []wire.Holder{{Cache: hex.EncodeToString(f.Array), Blocks: 1}}}, nil)
		}
		return true
	}
	c := dial(t, d.socket)
	const callers, calls = 16, 25
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for j := range calls {
				key := fmt.Appendf(nil, "%d-%d", i, j)
				got, err := c.Lookup(within(t), LookupRequest{Keys: [][]byte{key}, Model: "m", Layout: testLayout})
				if err != nil {
					assert.ErrorIs(t, err, ErrNotFound)
					assert.ErrorContains(t, err, hex.EncodeToString(key))
				} else {
					assert.Equal(t, hex.EncodeToString(key), got.Holders[0].Cache)
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { wg.Wait(); close(over) }()
	for { // until all callers have ended: where one failed without having asked, no count is ever reached
		select {
		case <-over:
			return
		default:
		}
		if !answer() {
			time.Sleep(time.Millisecond)
		}
	}
}

// TestDaemonThatDoesNotRead: callers go on without waiting, what is queued is bounded, and when the daemon reads again
// everything arrives whole and in order, descriptors too.
func TestDaemonThatDoesNotRead(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	push, err := cache.Write(within(t), []int{1, 2}, "t", Layerwise())
	require.NoError(t, err)
	d.set(func() { d.paused = true })
	const parts = 30000 // more than the socket's buffer holds
	for i := range parts {
		require.NoError(t, push.LayerPart(i%3, i%2, 1))
	}
	registered := make(chan error, 1)
	go func() { _, err := c.AllocateRegion(within(t), "behind", 1); registered <- err }()
	conn := c.now().conn
	require.Eventually(t, func() bool { // the region's frame is behind the others
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return len(conn.calls) == 1
	}, patience, time.Millisecond)
	conn.mu.Lock()
	conn.room = 15 << 20
	conn.mu.Unlock()
	big := make([]byte, 4<<20)
	for i := 0; i < len(big); i += 509 {
		big[i] = byte(i * 7)
	}
	for range 3 {
		require.Nil(t, conn.notify(wire.KindSpans, &wire.Spans{}, big))
	}
	fe := conn.notify(wire.KindSpans, &wire.Spans{}, big)
	require.NotNil(t, fe)
	assert.Equal(t, fault.ResourceExhausted, fe.Code)
	_, err = c.Ping(soon(t))
	assert.ErrorIs(t, err, ErrDeadlineExceeded)
	before := d.count(wire.KindPushLayer)
	assert.Less(t, before, parts)

	d.set(func() { d.paused = false })
	require.NoError(t, <-registered)
	d.got(wire.KindSpans, 3, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	n := 0
	for _, f := range d.frames {
		switch f.Kind {
		case wire.KindPushLayer:
			p, err := wire.ParseLayerPart(f.Array)
			require.NoError(t, err)
			require.Equal(t, wire.LayerPart{Transfer: push.number, Layer: uint32(n % 3), First: uint32(n % 2), Count: 1}, p)
			n++
		case wire.KindSpans:
			require.Equal(t, big, f.Array)
		}
	}
	assert.Equal(t, parts, n)
	assert.Equal(t, 2, d.fds, "the cache's memory, and the region's")
}

// TestLostWhileQueued: the end of the connection lets the queue and its descriptors go.
func TestLostWhileQueued(t *testing.T) {
	d := startFake(t)
	c, _ := d.attach()
	d.set(func() { d.paused = true })
	conn := c.now().conn
	require.Nil(t, conn.notify(wire.KindSpans, &wire.Spans{}, make([]byte, 1<<20)))
	registered := make(chan error, 1)
	go func() { _, err := c.AllocateRegion(context.Background(), "behind", 1); registered <- err }()
	require.Eventually(t, func() bool {
		conn.mu.Lock()
		defer conn.mu.Unlock()
		return len(conn.calls) == 1
	}, patience, time.Millisecond)
	d.hangUp()
	err := <-registered
	assert.ErrorIs(t, err, ErrDaemonUnavailable)
	assert.True(t, asTransferError(t, err).Released, "nothing was granted on it")
	assert.NoError(t, c.Close())
}

// TestCompletedIsBounded: a program that never asks does not grow, and who asks gets each thing once.
func TestCompletedIsBounded(t *testing.T) {
	c := newCompleted()
	h := &Scatter{}
	h.held.init(nil, "x", "", nil, guaranteeFull, h, nil)
	close(h.done)
	for range maxCompleted + 10 {
		c.add(h)
	}
	assert.Len(t, c.take(), maxCompleted)
	for range maxCompleted + 10 {
		c.add(h)
	}
	<-c.ready
	assert.Len(t, c.take(), maxCompleted+10, "who asks once is taken to ask again")
	assert.Empty(t, c.take())
}
