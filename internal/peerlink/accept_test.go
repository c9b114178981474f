package peerlink

import (
	"bytes"
	"context"
	"io"
	"net"
	"strings"
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

// hallway is a lane server that keeps what it gets.
type hallway struct {
	prefixes chan string
	hold     chan struct{} // nil: every lane's hello is over at once
	err      error

	mu    sync.Mutex
	conns []net.Conn
}

func newHallway() *hallway { return &hallway{prefixes: make(chan string, 100)} }

func (h *hallway) ServeLane(c net.Conn, prefix []byte) error {
	h.mu.Lock()
	h.conns = append(h.conns, c)
	h.mu.Unlock()
	h.prefixes <- string(prefix)
	if h.hold != nil {
		<-h.hold
	}
	if h.err != nil {
		_ = c.Close()
	}
	return h.err
}

func (h *hallway) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		_ = c.Close()
	}
}

func TestGarbage(t *testing.T) {
	b := newNode(t, "b", epochB)
	for _, s := range []string{"GET / HTTP/1.1\r\n\r\n", "\x16\x02\x01\x02\x00\x01", "KVXfoo", "kvxf", "\x00\x00\x00\x00", "KVXLlane"} {
		c := raw(t, b.addr)
		send(t, c, []byte(s))
		got, _ := io.ReadAll(c)
		assert.Empty(t, got, "%q is closed without an answer", s)
	}
	for _, s := range []string{"", "K", "KVX", "KVXF", "KVXF\x01\x01\x00\x00"} { // cut short
		c := raw(t, b.addr)
		send(t, c, []byte(s))
		require.NoError(t, c.(*net.TCPConn).CloseWrite())
		ends(t, c)
	}
	h := helloTo(b)
	whole := frame(t, wire.KindHello, 1, &h, nil)
	c := raw(t, b.addr)
	send(t, c, whole[:len(whole)-1])
	require.NoError(t, c.(*net.TCPConn).CloseWrite())
	ends(t, c)
	assert.Empty(t, b.h.links())
	dial(t, newNode(t, "a", epochA), b.ref())
}

func TestHelloInPieces(t *testing.T) {
	b := newNode(t, "b", epochB)
	c := raw(t, b.addr)
	h := helloTo(b)
	for _, x := range frame(t, wire.KindHello, 1, &h, nil) {
		send(t, c, []byte{x})
	}
	assert.Equal(t, wire.KindHelloOK, receive(t, c).Kind)
}

func TestSlowHello(t *testing.T) {
	b := newNode(t, "b", epochB, func(o *Options) { o.HelloTimeout = 30 * time.Millisecond })
	h := helloTo(b)
	whole := frame(t, wire.KindHello, 1, &h, nil)
	for _, n := range []int{0, 1, 4, 31, 32, len(whole) - 1} {
		local, remote := net.Pipe()
		done := make(chan error, 1)
		go func() { done <- b.ServeConn(context.Background(), local) }()
		_ = remote.SetDeadline(time.Now().Add(patience))
		_, err := remote.Write(whole[:n])
		require.NoError(t, err)
		ends(t, remote)
		assert.ErrorIs(t, <-done, fault.ErrDeadlineExceeded, "%d bytes", n)
		_ = remote.Close()
	}
}

// A dialer that trickles its hello has no more time than one that says nothing.
func TestTrickledHello(t *testing.T) {
	b := newNode(t, "b", epochB, func(o *Options) { o.HelloTimeout = 30 * time.Millisecond })
	c := raw(t, b.addr)
	h := helloTo(b)
	h.Software = strings.Repeat("x", 1000)
	whole := frame(t, wire.KindHello, 1, &h, nil)
	var err error
	for i := 0; err == nil && i < len(whole); i++ {
		_, err = c.Write(whole[i : i+1])
		time.Sleep(time.Millisecond)
	}
	ends(t, c)
	assert.Empty(t, b.h.links())
}

func TestSilentVisitorsAreBounded(t *testing.T) {
	const most = 4
	b := newNode(t, "b", epochB, func(o *Options) { o.MaxHandshakes, o.HelloTimeout = most, time.Hour })
	var silent []net.Conn
	for range 10 * most {
		c := raw(t, b.addr)
		send(t, c, []byte("KVXF"))
		silent = append(silent, c)
	}
	for _, c := range silent[:9*most] { // the oldest are put out
		ends(t, c)
	}
	b.door.mu.Lock()
	assert.LessOrEqual(t, len(b.door.visitors), most)
	b.door.mu.Unlock()
	a := newNode(t, "a", epochA)
	l := dial(t, a, b.ref())
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindFin}), "whoever speaks comes in")
	m := accepted(t, b, 0)
	eventually(t, "frame", func() bool { return len(b.h.received(m)) == 1 })
}

func TestLaneIsHandedOn(t *testing.T) {
	lanes := newHallway()
	defer lanes.close()
	b := newNode(t, "b", epochB, func(o *Options) { o.Lanes = laneDoor(lanes); o.HelloTimeout = time.Hour })
	c := raw(t, b.addr)
	send(t, c, []byte("KVXLhello"))
	assert.Equal(t, "KVXL", <-lanes.prefixes)
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	got := make([]byte, 5)
	_, err := io.ReadFull(lanes.conns[0], got)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(got))
	_, ok := lanes.conns[0].(syscall.Conn)
	assert.True(t, ok, "a lane's descriptor is within reach")
}

// A lane has no deadline of the handshake's any more, and outlives Serve and the handshake's own context.
func TestLaneOutlivesServe(t *testing.T) {
	lanes := newHallway()
	defer lanes.close()
	b := newNode(t, "b", epochB, func(o *Options) { o.Lanes = laneDoor(lanes); o.HelloTimeout = 30 * time.Millisecond })
	ln := listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx, ln) }()
	c := raw(t, ln.Addr().String())
	send(t, c, []byte("KVXL"))
	<-lanes.prefixes
	cancel()
	require.NoError(t, <-served)
	time.Sleep(50 * time.Millisecond) // long enough for a deadline that was left behind
	send(t, c, []byte("still"))
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	got := make([]byte, 5)
	_, err := io.ReadFull(lanes.conns[0], got)
	require.NoError(t, err)
	assert.Equal(t, "still", string(got))
}

func TestLaneHellosAreBounded(t *testing.T) {
	lanes := newHallway()
	lanes.hold = make(chan struct{})
	defer lanes.close()
	b := newNode(t, "b", epochB, func(o *Options) { o.Lanes, o.MaxHandshakes = laneDoor(lanes), 2 })
	var silent []net.Conn
	for range 10 {
		silent = append(silent, raw(t, b.addr))
		send(t, silent[len(silent)-1], []byte("KVXL"))
		<-lanes.prefixes
	}
	for _, c := range silent[:8] { // the oldest are put out, so that a peer's lanes come in
		ends(t, c)
	}
	b.lanes.mu.Lock()
	assert.LessOrEqual(t, len(b.lanes.visitors), 2)
	b.lanes.mu.Unlock()
	dial(t, newNode(t, "a", epochA), b.ref()) // lanes do not stand in the way of control connections
	close(lanes.hold)
	eventually(t, "room", func() bool {
		b.lanes.mu.Lock()
		defer b.lanes.mu.Unlock()
		return len(b.lanes.visitors) == 0
	})
	send(t, raw(t, b.addr), []byte("KVXL"))
	<-lanes.prefixes
}

func TestLaneThatIsRefused(t *testing.T) {
	lanes := newHallway()
	lanes.err = fault.New(fault.PermissionDenied, "lane", "wrong secret")
	b := newNode(t, "b", epochB, func(o *Options) { o.Lanes = laneDoor(lanes) })
	local, remote := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- b.ServeConn(context.Background(), local) }()
	_ = remote.SetDeadline(time.Now().Add(patience))
	_, err := remote.Write([]byte("KVXL"))
	require.NoError(t, err)
	ends(t, remote)
	assert.ErrorIs(t, <-done, fault.ErrPermissionDenied)
}

func TestLinksAreBounded(t *testing.T) {
	b := newNode(t, "b", epochB, func(o *Options) { o.MaxLinks = 2 })
	a := newNode(t, "a", epochA, func(o *Options) { o.MaxLinks = 3 })
	refs := make([]xfer.PeerRef, 4)
	for i := range refs {
		refs[i] = b.ref()
		refs[i].Tenant = string(rune('p' + i))
	}
	l := dial(t, a, refs[0])
	dial(t, a, refs[1])
	assert.Equal(t, "b", dialFails(t, a, refs[2], fault.ErrResourceExhausted).Peer)
	l.Close(nil)
	waitDown(t, b, accepted(t, b, 0))
	eventually(t, "room", func() bool { return len(b.snapshot(nil)) < 2 })
	dial(t, a, refs[2])

	c := newNode(t, "c", "cccccccccccccccccccccccccccccccc")
	a.opt.MaxLinks = len(a.snapshot(nil))
	err := dialFails(t, a, c.ref(), fault.ErrResourceExhausted)
	assert.ErrorContains(t, err, `node "a"`)
	eventually(t, "the peer's session ends", func() bool {
		targets, _ := c.fab.open()
		return targets == 0
	})
}

func TestServeEndsWithItsContext(t *testing.T) {
	b := newNode(t, "b", epochB, func(o *Options) { o.HelloTimeout = time.Hour })
	ln := listen(t, "127.0.0.1:0")
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- b.Serve(ctx, ln) }()
	ref := b.ref()
	ref.Addr = ln.Addr().String()
	a := newNode(t, "a", epochA)
	l := dial(t, a, ref)
	silent := raw(t, ref.Addr)
	send(t, silent, []byte("KV"))
	eventually(t, "a visitor", func() bool {
		b.door.mu.Lock()
		defer b.door.mu.Unlock()
		return len(b.door.visitors) == 1
	})
	cancel()
	require.NoError(t, <-served)
	ends(t, silent)
	m := accepted(t, b, 0)
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindFin}), "links live on")
	eventually(t, "frame", func() bool { return len(b.h.received(m)) == 1 })

	closed := listen(t, "127.0.0.1:0")
	require.NoError(t, closed.Close())
	assert.ErrorIs(t, b.Serve(context.Background(), closed), fault.ErrClosed)
}

// failing is a listener without descriptors for a while.
type failing struct {
	net.Listener
	left atomic.Int32
}

func (f *failing) Accept() (net.Conn, error) {
	if f.left.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Err: syscall.EMFILE}
	}
	return f.Listener.Accept()
}

func TestAcceptFailures(t *testing.T) {
	b := newNode(t, "b", epochB)
	ln := &failing{Listener: listen(t, "127.0.0.1:0")}
	ln.left.Store(4)
	served := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { served <- b.Serve(ctx, ln) }()
	ref := b.ref()
	ref.Addr = ln.Addr().String()
	dial(t, newNode(t, "a", epochA), ref)
	ln.left.Store(1 << 30)
	_ = raw(t, ref.Addr) // wakes Accept; from now on it fails
	cancel()             // and the pause between tries is no obstacle
	require.NoError(t, <-served)
}

// FuzzVisitor lets anybody say anything, and then go.
func FuzzVisitor(f *testing.F) {
	good := wire.Hello{MinVersion: 1, MaxVersion: 1, Node: "raw", Epoch: epochA, WantNode: "b", WantEpoch: epochB, Providers: []string{"tcp"}}
	hello := frame(f, wire.KindHello, 1, &good, nil)
	f.Add(hello)
	f.Add(append(bytes.Clone(hello), frame(f, wire.KindBind, 2, nil, []byte("array"))...))
	f.Add(append(bytes.Clone(hello), frame(f, wire.KindPing, 3, nil, nil)...))
	f.Add(append(bytes.Clone(hello), wire.Append(nil, wire.NewError(0, fault.New(fault.Closed, "x", "y")))...))
	f.Add(append(bytes.Clone(hello), "KVXFgarbage"...))
	f.Add(frame(f, wire.KindHello, 1, &wire.Hello{}, nil))
	f.Add([]byte("KVXLlane"))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte("\x16\x03\x01\x02\x00\x01"))
	f.Add([]byte{})
	b := newNode(f, "b", epochB)
	f.Fuzz(func(t *testing.T, in []byte) {
		c := raw(t, b.addr)
		go func() {
			_, _ = c.Write(in)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		for r := (lastReader{c}); ; {
			got, err := wire.ReadFrame(r, wire.PeerLimits)
			if err != nil {
				require.False(t, isTimeout(err), "the connection stays open")
				require.NotErrorIs(t, err, fault.ErrProtocolViolation, "what comes back is frames")
				break
			}
			require.Contains(t, []wire.Kind{wire.KindHelloOK, wire.KindError, wire.KindOK, wire.KindPing}, got.Kind)
		}
		_ = c.Close()
		eventually(t, "nothing is left", func() bool { return len(b.snapshot(nil)) == 0 })
		b.h.mu.Lock()
		defer b.h.mu.Unlock()
		require.Empty(t, b.h.violated)
		b.h.up, b.h.state = nil, map[xfer.Link]string{}
		clear(b.h.frames)
		clear(b.h.reasons)
		clear(b.h.inside)
		b.fab.mu.Lock()
		defer b.fab.mu.Unlock()
		for id, s := range b.fab.targets {
			require.Equal(t, int32(1), s.closes.Load())
			delete(b.fab.targets, id)
		}
	})
}

// lastReader takes a reset for an end.
type lastReader struct{ net.Conn }

func (r lastReader) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	if err != nil && !isTimeout(err) {
		err = io.EOF
	}
	return n, err
}
