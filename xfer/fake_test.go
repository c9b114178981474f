package xfer_test

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// fakeProvider does only what a test tells it to: completions are withheld, fences fail, registering waits.
type fakeProvider struct {
	onRegister func()
	caps       rdma.Caps

	mu      sync.Mutex
	events  []rdma.Event
	wake    chan struct{}
	regions []*fakeRegion
}

type fakeRegion struct {
	m      rdma.Memory
	closed atomic.Bool
}

func (r *fakeRegion) Memory() rdma.Memory { return r.m }
func (r *fakeRegion) Close() error        { r.closed.Store(true); return nil }

func (p *fakeProvider) Name() string    { return "fake" }
func (p *fakeProvider) Caps() rdma.Caps { return p.caps }
func (p *fakeProvider) Close() error    { return nil }
func (p *fakeProvider) Accept(rdma.SessionID) (rdma.Target, []byte, error) {
	return nil, nil, fault.New(fault.NotSupported, "accept", "")
}
func (p *fakeProvider) Connect(context.Context, rdma.SessionID, string, []byte) (rdma.Initiator, error) {
	return nil, fault.New(fault.NotSupported, "connect", "")
}

func (p *fakeProvider) Register(m rdma.Memory) (rdma.Region, error) {
	if p.onRegister != nil {
		p.onRegister()
	}
	r := &fakeRegion{m: m}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.regions = append(p.regions, r)
	return r, nil
}

func (p *fakeProvider) push(ev rdma.Event) {
	p.mu.Lock()
	p.events = append(p.events, ev)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *fakeProvider) Poll(dst []rdma.Event) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := copy(dst, p.events)
	p.events = p.events[n:]
	return n
}

func (p *fakeProvider) Wait(ctx context.Context) error {
	for {
		p.mu.Lock()
		n := len(p.events)
		p.mu.Unlock()
		if n > 0 {
			return nil
		}
		select {
		case <-p.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// fakeInitiator takes room operations and completes them when the test says so.
type fakeInitiator struct {
	p        *fakeProvider
	session  rdma.SessionID
	withhold bool  // Cancel and Close complete nothing
	postErr  error // of every Post

	mu      sync.Mutex
	closed  bool
	room    int
	posts   int
	pending []rdma.Op
}

func (i *fakeInitiator) Post(ops []rdma.Op) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.postErr != nil {
		return 0, i.postErr
	}
	if i.closed {
		return 0, fault.New(fault.Closed, "post", "closed")
	}
	n := min(len(ops), max(0, i.room-len(i.pending)))
	i.pending = append(i.pending, ops[:n]...)
	i.posts += n
	return n, nil
}

// complete ends the oldest pending operation, or all of them.
func (i *fakeInitiator) complete(code fault.Code, all bool) {
	i.mu.Lock()
	n := min(1, len(i.pending))
	if all {
		n = len(i.pending)
	}
	ops := i.pending[:n]
	i.pending = i.pending[n:]
	i.mu.Unlock()
	for _, o := range ops {
		i.p.push(rdma.Event{Kind: rdma.EventCompletion, Status: code, Session: i.session, Op: o.ID})
	}
}

func (i *fakeInitiator) count() (posts, pending int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.posts, len(i.pending)
}

func (i *fakeInitiator) Cancel(ids ...uint64) {
	if i.withhold {
		return
	}
	var done []rdma.Op
	i.mu.Lock()
	left := i.pending[:0:0]
	for _, o := range i.pending {
		hit := false
		for _, id := range ids {
			hit = hit || id == o.ID
		}
		if hit {
			done = append(done, o)
		} else {
			left = append(left, o)
		}
	}
	i.pending = left
	i.mu.Unlock()
	for _, o := range done {
		i.p.push(rdma.Event{Kind: rdma.EventCompletion, Status: fault.Cancelled, Session: i.session, Op: o.ID})
	}
}

func (i *fakeInitiator) Close() error {
	i.mu.Lock()
	i.closed = true
	i.mu.Unlock()
	if !i.withhold {
		i.complete(fault.Closed, true)
	}
	return nil
}

// fakeTarget records fences.
type fakeTarget struct {
	grantErr, fenceErr error
	gate               chan struct{} // not nil: Fence waits for it

	mu     sync.Mutex
	grants int
	fenced []rdma.Key
}

func (t *fakeTarget) Grant(rdma.Window) (rdma.Key, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.grants++
	return rdma.Key(t.grants), t.grantErr
}
func (t *fakeTarget) Extend(rdma.Key, rdma.Instant) error { return nil }
func (t *fakeTarget) Fence(k rdma.Key) error {
	if t.gate != nil {
		<-t.gate
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fenced = append(t.fenced, k)
	return t.fenceErr
}
func (t *fakeTarget) Close() error { return nil }

func (t *fakeTarget) fences() []rdma.Key {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]rdma.Key(nil), t.fenced...)
}

// fakeLink is a link to a peer that the test plays.
type fakeLink struct {
	n       *fakeNode
	session rdma.SessionID
	init    *fakeInitiator
	target  *fakeTarget
	once    sync.Once
	down    atomic.Bool
	over    string       // the provider's name; default: fake
	peer    xfer.PeerRef // default: a node called peer

	mu   sync.Mutex
	sent []wire.Frame
}

func (l *fakeLink) Peer() xfer.PeerRef {
	if l.peer.Node != "" {
		return l.peer
	}
	return xfer.PeerRef{Node: "peer", Epoch: "e", Tenant: "default"}
}
func (l *fakeLink) Provider() (name, reason string) { return cmp.Or(l.over, "fake"), "the only one" }
func (l *fakeLink) Session() rdma.SessionID         { return l.session }
func (l *fakeLink) Initiator() rdma.Initiator {
	if l.init == nil {
		return nil
	}
	return l.init
}
func (l *fakeLink) Target() rdma.Target {
	if l.target == nil {
		return nil
	}
	return l.target
}

func (l *fakeLink) Send(f wire.Frame) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down.Load() {
		return fault.New(fault.PeerLost, "send", "")
	}
	l.sent = append(l.sent, f)
	return nil
}

func (l *fakeLink) Close(reason error) {
	l.once.Do(func() {
		l.down.Store(true)
		if l.init != nil {
			_ = l.init.Close()
		}
		l.n.wg.Go(func() { l.n.engine.LinkDown(l, reason) })
	})
}

// take waits for a frame of a kind and removes it.
func (l *fakeLink) take(kind wire.Kind) (f wire.Frame) {
	l.n.t.Helper()
	l.n.until(func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		for i, x := range l.sent {
			if x.Kind == kind {
				f = x
				l.sent = append(l.sent[:i:i], l.sent[i+1:]...)
				return true
			}
		}
		return false
	})
	return f
}

func (l *fakeLink) none(kind wire.Kind) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.sent {
		if x.Kind == kind {
			return false
		}
	}
	return true
}

func (l *fakeLink) receive(kind wire.Kind, request uint64, body any, array []byte) {
	f, err := wire.NewFrame(kind, request, body, array)
	require.NoError(l.n.t, err)
	l.n.engine.LinkFrame(l, f)
}

// fakeNode is an engine among fakes; its peers are the test.
type fakeNode struct {
	*node
	provider *fakeProvider
	dial     func(ctx context.Context) (xfer.Link, error)
	dialRef  func(ref xfer.PeerRef) (xfer.Link, error) // instead of dial
	dir      *directory
	wg       sync.WaitGroup
	sessions atomic.Uint64
}

func newFakeNode(t testing.TB, change func(*xfer.Options)) *fakeNode {
	n := &fakeNode{provider: &fakeProvider{wake: make(chan struct{}, 1), caps: rdma.Caps{Write: true, MaxRanges: 256, MaxOpBytes: 1 << 30,
		MaxInFlight: 1 << 16, MaxInFlightLen: 1 << 40}}, dir: &directory{known: map[string]int{}}}
	db, _, err := blockdb.Open(blockdb.Options{Dir: "db", FS: vfs.NewMem(), BootID: "boot", BallastBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	o := xfer.Options{Node: "n", Epoch: "00000000000000000000000000000001", BootID: "boot", Addr: "127.0.0.1:1", Clock: xfer.NewClock(),
		Providers: []rdma.Provider{n.provider}, Store: db, Dialer: n, Directory: n.dir,
		Tracer: noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	n.node = &node{t: t, name: "n", store: db, engine: xfer.New(o)}
	t.Cleanup(func() {
		n.engine.Close()
		n.wg.Wait()
		_ = db.Close()
	})
	return n
}

func (n *fakeNode) Dial(ctx context.Context, ref xfer.PeerRef) (xfer.Link, error) {
	if n.dialRef != nil {
		return n.dialRef(ref)
	}
	return n.dial(ctx)
}

// source makes a link that pushes will find.
func (n *fakeNode) source(room int) *fakeLink {
	l := &fakeLink{n: n, session: rdma.SessionID(n.sessions.Add(1))}
	l.init = &fakeInitiator{p: n.provider, session: l.session, room: room}
	n.dial = func(context.Context) (xfer.Link, error) { return l, nil }
	n.engine.LinkUp(l)
	return l
}

// target makes a link on which BINDs come.
func (n *fakeNode) target() *fakeLink {
	l := &fakeLink{n: n, session: rdma.SessionID(n.sessions.Add(1)), target: &fakeTarget{}}
	n.engine.LinkUp(l)
	return l
}

func (n *fakeNode) until(cond func() bool) {
	n.t.Helper()
	require.Eventually(n.t, cond, patience, 200*time.Microsecond)
}

// ticket is one that the fake peer would have granted.
func ticket(blocks uint32) string {
	t := wire.Ticket{Grants: []wire.TicketGrant{{Node: "peer", Epoch: "000000000000000000000000000000aa", Addr: "a:1",
		Lease: "000000000000000000000000000000bb", Secret: make([]byte, 16), Blocks: blocks}}}
	return t.Encode()
}

// bind is the BIND that fits a lease's ticket, of a transfer of its own.
func bind(t *testing.T, w *worker, ticket string) wire.Bind {
	p, err := wire.ParseTicket(ticket)
	require.NoError(t, err)
	g := p.Grants[0]
	return wire.Bind{Lease: g.Lease, Secret: g.Secret, Transfer: g.Lease, Attempt: 1, Model: w.spec.Model,
		Revision: w.spec.Revision, Layout: w.spec.Layout, Blocks: g.Blocks, RemainingMillis: 60_000}
}

// bound answers a BIND as a right peer would.
func (l *fakeLink) bound(w *worker, handle uint64, blocks ...uint32) {
	f := l.take(wire.KindBind)
	l.receive(wire.KindOK, f.Request, wire.Bound{Handle: handle, Key: handle, Layout: w.spec.Layout, NumBlocks: 64, RemainingMillis: 1000}, wire.AppendU32s(nil, blocks))
}

// arrival reports pieces as placed.
func (l *fakeLink) arrival(key uint64, layer, first, count uint32) {
	l.n.provider.push(rdma.Event{Kind: rdma.EventArrival, Session: l.session, Key: rdma.Key(key), Bytes: uint64(count) * small.PieceBytes(),
		Tag: uint64(layout.NewTag(layer, first, count))})
}

// handClock stands still until it is set; setting it fires nothing.
type handClock struct{ now atomic.Int64 }

func (c *handClock) Now() rdma.Instant { return rdma.Instant(c.now.Load()) }
func (c *handClock) AfterFunc(rdma.Instant, func()) func() bool {
	return func() bool { return true }
}

// directory counts announcements.
type directory struct {
	mu    sync.Mutex
	known map[string]int
}

func (d *directory) PutCache(c xfer.CacheEntry) { d.add(c.Name, 1) }
func (d *directory) DropCache(_, name string)   { d.add(name, 0) }
func (d *directory) add(name string, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.known[name] = n
}
func (d *directory) has(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known[name] != 0
}
