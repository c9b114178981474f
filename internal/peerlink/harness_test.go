package peerlink

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; nothing depends on how much of it is used.
const patience = 60 * time.Second

const (
	epochA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	epochB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, patience, time.Millisecond, what)
}

// fabric is a provider without bytes: it checks what sessions are opened and closed with.
type fabric struct {
	rdma.Provider
	name string

	mu         sync.Mutex
	ids        map[rdma.SessionID]bool
	targets    map[rdma.SessionID]*session
	initiators map[rdma.SessionID]*session
	addrs      []string
	connect    func(ctx context.Context) error // nil: at once
	accept     error
}

func newFabric(name string) *fabric {
	return &fabric{name: name, ids: map[rdma.SessionID]bool{}, targets: map[rdma.SessionID]*session{}, initiators: map[rdma.SessionID]*session{}}
}

type session struct {
	rdma.Target
	rdma.Initiator
	closes atomic.Int32
}

type targetSide struct{ *session }

func (s targetSide) Close() error         { s.closes.Add(1); return nil }
func (s targetSide) Fence(rdma.Key) error { return nil }

type initiatorSide struct{ *session }

func (s initiatorSide) Close() error { s.closes.Add(1); return nil }

func (f *fabric) Name() string { return f.name }

func (f *fabric) fresh(id rdma.SessionID) {
	if f.ids[id] {
		panic(fmt.Sprintf("session %d was used before", id))
	}
	f.ids[id] = true
}

func (f *fabric) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.accept != nil {
		return nil, nil, f.accept
	}
	f.fresh(id)
	f.targets[id] = &session{}
	return targetSide{f.targets[id]}, fmt.Appendf(nil, "%s secret", f.name), nil
}

func (f *fabric) Connect(ctx context.Context, id rdma.SessionID, addr string, params []byte) (rdma.Initiator, error) {
	if string(params) != f.name+" secret" {
		return nil, fault.Invalid("connect", "params", "%q", params)
	}
	if f.connect != nil {
		if err := f.connect(ctx); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fresh(id)
	f.initiators[id] = &session{}
	f.addrs = append(f.addrs, addr)
	return initiatorSide{f.initiators[id]}, nil
}

// sessions counts those that are open.
func (f *fabric) open() (targets, initiators int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.targets {
		if s.closes.Load() == 0 {
			targets++
		}
	}
	for _, s := range f.initiators {
		if s.closes.Load() == 0 {
			initiators++
		}
	}
	return
}

// recorder is a handler that holds peerlink to its contract.
type recorder struct {
	t testing.TB

	mu       sync.Mutex
	up       []xfer.Link
	state    map[xfer.Link]string
	inside   map[xfer.Link]bool
	frames   map[xfer.Link][]wire.Frame
	reasons  map[xfer.Link]error
	violated []string

	onUp    func(xfer.Link)
	onFrame func(xfer.Link, wire.Frame)
	onDown  func(xfer.Link, error)
}

func newRecorder(t testing.TB) *recorder {
	return &recorder{t: t, state: map[xfer.Link]string{}, inside: map[xfer.Link]bool{}, frames: map[xfer.Link][]wire.Frame{}, reasons: map[xfer.Link]error{}}
}

// enter notes that the handler is called; every call for a link must have ended before the next begins.
func (r *recorder) enter(l xfer.Link, from, to string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.state[l] != from || r.inside[l] {
		r.violated = append(r.violated, fmt.Sprintf("%s after %q, inside another call: %v", to, r.state[l], r.inside[l]))
	}
	r.state[l], r.inside[l] = to, true
}

func (r *recorder) leave(l xfer.Link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside[l] = false
}

func (r *recorder) LinkUp(l xfer.Link) {
	r.enter(l, "", "up")
	defer r.leave(l)
	if r.onUp != nil {
		r.onUp(l)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.up = append(r.up, l)
}

func (r *recorder) LinkFrame(l xfer.Link, f wire.Frame) {
	r.enter(l, "up", "up")
	defer r.leave(l)
	if r.onFrame != nil {
		r.onFrame(l, f)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.frames[l] = append(r.frames[l], f)
}

func (r *recorder) LinkDown(l xfer.Link, reason error) {
	r.enter(l, "up", "down")
	defer r.leave(l)
	if r.onDown != nil {
		r.onDown(l, reason)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reasons[l] = reason
}

func (r *recorder) links() []xfer.Link {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]xfer.Link(nil), r.up...)
}

func (r *recorder) received(l xfer.Link) []wire.Frame {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]wire.Frame(nil), r.frames[l]...)
}

func (r *recorder) reason(l xfer.Link) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.reasons[l]
}

// node is one daemon's links with a port.
type node struct {
	*Links
	h    *recorder
	fab  *fabric
	addr string
}

func (n *node) ref() xfer.PeerRef {
	return xfer.PeerRef{Node: n.opt.Node, Epoch: n.opt.Epoch, Addr: n.addr, Tenant: "blue"}
}

// newNode starts a node that is closed and checked at the test's end.
func newNode(t testing.TB, name, epoch string, change ...func(*Options)) *node {
	t.Helper()
	n := &node{h: newRecorder(t), fab: newFabric("tcp")}
	opt := Options{Node: name, Epoch: epoch, Tenant: "green", Software: "test 1", Providers: []rdma.Provider{n.fab}, Handler: n.h}
	for _, c := range change {
		c(&opt)
	}
	n.h = opt.Handler.(*recorder)
	s, err := New(opt)
	require.NoError(t, err)
	n.Links = s
	ln := listen(t, "127.0.0.1:0")
	n.addr = ln.Addr().String()
	served := make(chan error, 1)
	go func() { served <- s.Serve(context.Background(), ln) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		assert.NoError(t, s.Close(ctx))
		if err := <-served; err != nil {
			assert.ErrorIs(t, err, fault.ErrClosed) // Close came first
		}
		n.h.mu.Lock()
		defer n.h.mu.Unlock()
		assert.Empty(t, n.h.violated)
		for _, l := range n.h.up {
			assert.Equal(t, "down", n.h.state[l])
		}
		targets, initiators := n.fab.open()
		assert.Zero(t, targets+initiators, "sessions are open")
	})
	return n
}

func listen(t testing.TB, addr string) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

func dial(t testing.TB, from *node, ref xfer.PeerRef) *link {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	l, err := from.Dial(ctx, ref)
	require.NoError(t, err)
	return l.(*link)
}

func dialFails(t testing.TB, from *node, ref xfer.PeerRef, want error) *fault.Error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := from.Dial(ctx, ref)
	require.ErrorIs(t, err, want)
	return fault.From("", err)
}

// accepted waits for the n-th link that the node's handler has seen.
func accepted(t testing.TB, n *node, index int) xfer.Link {
	t.Helper()
	eventually(t, "link up", func() bool { return len(n.h.links()) > index })
	return n.h.links()[index]
}

// raw is a connection that the test speaks on itself.
func raw(t testing.TB, addr string) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, patience)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// helloTo is a good HELLO to n.
func helloTo(n *node) wire.Hello {
	return wire.Hello{MinVersion: 1, MaxVersion: 1, Tenant: "blue", Node: "raw", Epoch: epochA, WantNode: n.opt.Node, WantEpoch: n.opt.Epoch,
		Providers: []string{"tcp"}}
}

func frame(t testing.TB, kind wire.Kind, request uint64, body any, array []byte) []byte {
	t.Helper()
	f, err := wire.NewFrame(kind, request, body, array)
	require.NoError(t, err)
	return wire.Append(nil, f)
}

func send(t testing.TB, c net.Conn, b []byte) {
	t.Helper()
	_, err := c.Write(b)
	require.NoError(t, err)
}

// receive gives the next frame that is no heartbeat.
func receive(t testing.TB, c net.Conn) wire.Frame {
	t.Helper()
	for {
		f, err := wire.ReadFrame(c, wire.PeerLimits)
		require.NoError(t, err)
		if f.Kind != wire.KindPing && f.Request&PingBit == 0 {
			return f
		}
	}
}

func body[T any](t testing.TB, f wire.Frame) (v T) {
	t.Helper()
	require.NoError(t, json.Unmarshal(f.JSON, &v))
	return v
}

// answers plays a dialer with one frame and gives the answer.
func answers(t testing.TB, n *node, first []byte) wire.Frame {
	t.Helper()
	c := raw(t, n.addr)
	send(t, c, first)
	return receive(t, c)
}

// ends reads until the other side closes.
func ends(t testing.TB, c net.Conn) {
	t.Helper()
	b := make([]byte, 4096)
	for {
		if _, err := c.Read(b); err != nil {
			require.False(t, isTimeout(err), "the connection stays open")
			return
		}
	}
}

// peer is a listening side that the test plays: it answers HELLO with what answer makes of it.
func peer(t testing.TB, answer func(h wire.Hello) []byte, after func(net.Conn)) string {
	t.Helper()
	ln := listen(t, "127.0.0.1:0")
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = c.Close() }()
				_ = c.SetDeadline(time.Now().Add(patience))
				f, err := wire.ReadFrame(c, helloLimits)
				if err != nil {
					return
				}
				var h wire.Hello
				if f.Decode(&h) != nil {
					return
				}
				if _, err = c.Write(answer(h)); err == nil && after != nil {
					after(c)
				}
			})
		}
	})
	return ln.Addr().String()
}

// goodAnswer is HELLO_OK from node b.
func goodAnswer(h wire.Hello) wire.Hello {
	return wire.Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Tenant: h.Tenant, Node: "b", Epoch: epochB, Provider: "tcp", Reason: "test",
		Params: []byte("tcp secret")}
}
