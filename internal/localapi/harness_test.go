package localapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childSocket); path != "" {
		childMain(path)
		return
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what must happen.
const patience = time.Minute

// fakeEngine records calls and answers as its hooks say.
type fakeEngine struct {
	t testing.TB

	mu     sync.Mutex
	calls  []string
	next   xfer.ClientID
	sinks  map[xfer.ClientID]xfer.Sink
	infos  map[xfer.ClientID]xfer.ClientInfo
	gone   map[xfer.ClientID]int
	busy   map[xfer.ClientID]bool // a queued call is in progress
	maps   []xfer.Mapping
	change sync.Cond

	addErr error
	evict  func(ctx context.Context) error
	lease  func(sink xfer.Sink) error
	far    func(ctx context.Context) error // LOOKUP, and LEASE of an instance
	blocks []byte
}

func newEngine(t testing.TB) *fakeEngine {
	e := &fakeEngine{t: t, sinks: map[xfer.ClientID]xfer.Sink{}, infos: map[xfer.ClientID]xfer.ClientInfo{},
		gone: map[xfer.ClientID]int{}, busy: map[xfer.ClientID]bool{}}
	e.change.L = &e.mu
	return e
}

func (e *fakeEngine) note(c xfer.ClientID, format string, args ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone[c] > 0 {
		e.t.Errorf("call after ClientGone: "+format, args...)
	}
	e.calls = append(e.calls, fmt.Sprintf(format, args...))
	e.change.Broadcast()
}

// queued checks that the queue's calls of a client never overlap.
func (e *fakeEngine) queued(c xfer.ClientID) func() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.busy[c] {
		e.t.Error("two queued calls of a client at one time")
	}
	e.busy[c] = true
	return func() {
		e.mu.Lock()
		e.busy[c] = false
		e.mu.Unlock()
	}
}

// wait waits until a call that begins with prefix was made n times.
func (e *fakeEngine) wait(prefix string, n int) {
	e.t.Helper()
	stop := time.AfterFunc(patience, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.t.Errorf("no %d calls %q; calls: %q", n, prefix, e.calls)
		e.calls = append(e.calls, "")
		e.change.Broadcast()
	})
	defer stop.Stop()
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.count(prefix) < n && !(len(e.calls) > 0 && e.calls[len(e.calls)-1] == "") {
		e.change.Wait()
	}
}

func (e *fakeEngine) count(prefix string) (n int) {
	for _, s := range e.calls {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func (e *fakeEngine) log() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.calls...)
}

func (e *fakeEngine) sink(c xfer.ClientID) xfer.Sink {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sinks[c]
}

func (e *fakeEngine) info(c xfer.ClientID) xfer.ClientInfo {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.infos[c]
}

func (e *fakeEngine) AddClient(info xfer.ClientInfo, s xfer.Sink) (xfer.ClientID, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.addErr != nil {
		return 0, e.addErr
	}
	e.next++
	e.sinks[e.next], e.infos[e.next] = s, info
	e.calls = append(e.calls, "add")
	e.change.Broadcast()
	return e.next, nil
}

func (e *fakeEngine) ClientGone(c xfer.ClientID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.gone[c]++
	if e.gone[c] > 1 || e.busy[c] {
		e.t.Errorf("ClientGone: %d times, call in progress %v", e.gone[c], e.busy[c])
	}
	e.calls = append(e.calls, "gone")
	for _, m := range e.maps {
		_ = m.Close()
	}
	e.maps = nil
	e.change.Broadcast()
}

func (e *fakeEngine) RegisterRegion(_ context.Context, c xfer.ClientID, r wire.RegisterRegion, m xfer.Mapping) (wire.RegionInfo, error) {
	defer e.queued(c)()
	e.note(c, "region %s %d", r.Name, m.Memory().Len)
	if r.Name == "refused" {
		return wire.RegionInfo{}, fault.New(fault.AlreadyExists, "register_region", "there")
	}
	e.mu.Lock()
	e.maps = append(e.maps, m)
	e.mu.Unlock()
	return wire.RegionInfo{Region: 7, MemoryKind: "host"}, nil
}

func (e *fakeEngine) DeregisterRegion(_ context.Context, c xfer.ClientID, region uint64) error {
	defer e.queued(c)()
	e.note(c, "deregister %d", region)
	return nil
}

func (e *fakeEngine) RegisterCache(_ context.Context, c xfer.ClientID, r wire.RegisterCache, v []wire.Vouch) (wire.CacheInfo, []uint32, error) {
	defer e.queued(c)()
	e.note(c, "cache %s %v", r.Name, v)
	return wire.CacheInfo{Cache: 3, BlockBytes: 4096}, []uint32{1, 2}, nil
}

func (e *fakeEngine) DropCache(_ context.Context, c xfer.ClientID, cache uint64) error {
	defer e.queued(c)()
	e.note(c, "drop %d", cache)
	return fault.New(fault.NotFound, "drop_cache", "no cache %d", cache)
}

func (e *fakeEngine) Blocks(c xfer.ClientID, cache uint64) (wire.BlocksInfo, []byte, error) {
	defer e.queued(c)()
	e.note(c, "blocks %d", cache)
	return wire.BlocksInfo{Total: 9}, e.blocks, nil
}

func (e *fakeEngine) Evict(ctx context.Context, c xfer.ClientID, cache uint64, blocks []uint32) error {
	defer e.queued(c)()
	e.note(c, "evict %d %v", cache, blocks)
	if e.evict != nil {
		return e.evict(ctx)
	}
	return nil
}

func (e *fakeEngine) Lease(_ context.Context, c xfer.ClientID, r wire.LeaseRequest, blocks []uint32) (wire.LeaseInfo, error) {
	defer e.queued(c)()
	e.note(c, "lease %d %v", r.Cache, blocks)
	if e.lease != nil {
		if err := e.lease(e.sink(c)); err != nil {
			return wire.LeaseInfo{}, err
		}
	}
	return wire.LeaseInfo{Lease: 11, Ticket: "t", Generation: 5}, nil
}

func (e *fakeEngine) Revoke(c xfer.ClientID, lease uint64) error {
	e.note(c, "revoke %d", lease)
	return nil
}

func (e *fakeEngine) Push(c xfer.ClientID, r wire.PushRequest, blocks []uint32) (wire.PushInfo, error) {
	defer e.queued(c)()
	e.note(c, "push %d %v", r.Cache, blocks)
	return wire.PushInfo{Transfer: 21}, nil
}

func (e *fakeEngine) PushLayer(c xfer.ClientID, p wire.LayerPart) { e.note(c, "layer %v", p) }

func (e *fakeEngine) PushFinish(c xfer.ClientID, transfer uint64, n []byte) {
	e.note(c, "finish %d %s", transfer, n)
}

func (e *fakeEngine) CancelTransfer(c xfer.ClientID, transfer uint64) {
	e.note(c, "cancel %d", transfer)
}
func (e *fakeEngine) Renew(c xfer.ClientID, r wire.Renew) error {
	e.note(c, "renew %d %d", r.Lease, r.TTLMillis)
	return nil
}
func (e *fakeEngine) Advertise(_ context.Context, c xfer.ClientID, r wire.Advertise, spans []wire.RegionSpan) (wire.LeaseInfo, error) {
	e.note(c, "advertise %d %s %v", r.Region, r.Mode, spans)
	return wire.LeaseInfo{Lease: 31, Ticket: "t"}, nil
}
func (e *fakeEngine) Pull(c xfer.ClientID, r wire.PullRequest, blocks []uint32) (wire.PushInfo, error) {
	e.note(c, "pull %d %s %v %q", r.Cache, r.Ticket, blocks, r.Notification)
	return wire.PushInfo{Transfer: 32}, nil
}
func (e *fakeEngine) Scatter(c xfer.ClientID, r wire.ScatterRequest, ranges []wire.ScatterRange) (wire.PushInfo, error) {
	e.note(c, "scatter %d %s %s %v", r.Region, r.Mode, r.Ticket, ranges)
	return wire.PushInfo{Transfer: 33}, nil
}

func (e *fakeEngine) Prepare(c xfer.ClientID, r wire.Prepare, array []byte) (wire.PushInfo, error) {
	e.note(c, "prepare %d %d %s %s %x", r.Cache, r.Region, r.Mode, r.Ticket, array)
	return wire.PushInfo{Transfer: 34}, nil
}

func (e *fakeEngine) NewPosting(_ xfer.ClientID, done func(wire.Posted)) xfer.Poster {
	return fakePoster{done}
}

// fakePoster ends each post at once.
type fakePoster struct{ done func(wire.Posted) }

func (p fakePoster) Post(x wire.Post) { p.done(wire.Posted{Cookie: x.Cookie, Bytes: x.Prepared}) }
func (fakePoster) Progress() int      { return 0 }
func (fakePoster) Rest()              {}

func (e *fakeEngine) Publish(c xfer.ClientID, r wire.Publish, blocks []uint32, keys [][]byte) (wire.PublishInfo, error) {
	defer e.queued(c)()
	e.note(c, "publish %d %v %s", r.Cache, blocks, keys)
	return wire.PublishInfo{Generation: 6}, nil
}

func (e *fakeEngine) Lookup(ctx context.Context, c xfer.ClientID, r wire.Lookup, keys []byte) (wire.LookupInfo, error) {
	e.note(c, "lookup %s %s", r.Model, keys)
	if e.far != nil {
		if err := e.far(ctx); err != nil {
			return wire.LookupInfo{}, err
		}
	}
	return wire.LookupInfo{Holders: []wire.Holder{{Node: "n", Blocks: 1}}}, nil
}

func (e *fakeEngine) Open(ctx context.Context, c xfer.ClientID, r wire.Open, keys []byte) (wire.OpenInfo, error) {
	e.note(c, "open %s %s %s", r.Node, r.Cache, keys)
	return wire.OpenInfo{Ticket: "o"}, nil
}

func (e *fakeEngine) Probe(ctx context.Context, _ string, r wire.Probe) (wire.ProbeInfo, error) {
	e.note(0, "probe %s %s %d", r.Node, r.Provider, r.Bytes)
	if e.far != nil {
		if err := e.far(ctx); err != nil {
			return wire.ProbeInfo{}, err
		}
	}
	return wire.ProbeInfo{Node: r.Node}, nil
}

func (e *fakeEngine) Trace(ctx context.Context, _ xfer.ClientInfo, r wire.TraceQuery) (wire.TraceInfo, []byte, error) {
	e.note(0, "trace %s %t", r.ID, r.LocalOnly)
	if e.far != nil {
		if err := e.far(ctx); err != nil {
			return wire.TraceInfo{}, nil, err
		}
	}
	return wire.TraceInfo{TraceID: strings.Repeat("ab", 16)}, []byte("{}\n"), nil
}

func (e *fakeEngine) LeaseInstance(ctx context.Context, c xfer.ClientID, r wire.LeaseRequest, blocks []uint32, answered func(wire.LeaseInfo)) error {
	e.note(c, "lease of %s %v", r.Instance, blocks)
	if e.far != nil {
		if err := e.far(ctx); err != nil {
			return err
		}
	}
	answered(wire.LeaseInfo{Lease: 12, Ticket: "i", Ranks: 2})
	e.sink(c).LayersVisible(wire.LayersVisible{Lease: 12, Layers: []uint32{1}})
	return nil
}

var quiet = slog.New(slog.DiscardHandler)

func options(t testing.TB, e *fakeEngine) Options {
	dir, err := os.MkdirTemp("", "kvxfer") // short: a socket's path is
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return Options{Path: filepath.Join(dir, "run", "s.sock"), Engine: e, Node: "node-0", Epoch: strings.Repeat("ab", 16),
		Software: "kvxfer test", BootID: "boot", Logger: quiet}
}

func serve(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Serve(context.Background(), o)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(t, s.Close(ctx))
	})
	return s
}

// testClient is a client of the protocol with as little as it needs.
type testClient struct {
	t    testing.TB
	conn *net.UnixConn
	id   uint64
}

func dial(t testing.TB, s *Server) *testClient {
	t.Helper()
	conn, err := net.DialUnix("unix", nil, s.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return &testClient{t: t, conn: conn}
}

func attach(t testing.TB, s *Server) *testClient {
	t.Helper()
	c := dial(t, s)
	f := c.ask(wire.KindHello, hello(), nil)
	require.Equal(t, wire.KindHelloOK, f.Kind, "%s", f.JSON)
	return c
}

func hello() *wire.Hello {
	return &wire.Hello{MinVersion: 1, MaxVersion: 1, Process: "test", Pid: 42}
}

// send writes a frame with a fresh id.
func (c *testClient) send(kind wire.Kind, body any, array []byte, fds ...int) uint64 {
	c.t.Helper()
	c.id++
	f, err := wire.NewFrame(kind, c.id, body, array)
	require.NoError(c.t, err)
	f.FDs = uint16(len(fds))
	c.raw(wire.Append(nil, f), fds...)
	return c.id
}

func (c *testClient) raw(b []byte, fds ...int) {
	c.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.conn.WriteMsgUnix(b, oob, nil)
	require.NoError(c.t, err)
	if n < len(b) {
		_, err = c.conn.Write(b[n:])
		require.NoError(c.t, err)
	}
}

func (c *testClient) recv() wire.Frame {
	c.t.Helper()
	f, err := wire.ReadFrame(c.conn, wire.LocalLimits)
	require.NoError(c.t, err)
	return f
}

func (c *testClient) ask(kind wire.Kind, body any, array []byte, fds ...int) wire.Frame {
	c.t.Helper()
	id := c.send(kind, body, array, fds...)
	f := c.recv()
	require.Equal(c.t, id, f.Request, "%s %s", f.Kind, f.JSON)
	return f
}

// refused reads an ERROR with this request id.
func (c *testClient) refused(id uint64, sentinel error, field string) *fault.Error {
	c.t.Helper()
	f := c.recv()
	require.Equal(c.t, wire.KindError, f.Kind, "%s %s", f.Kind, f.JSON)
	require.Equal(c.t, id, f.Request, "%s", f.JSON)
	var w fault.Wire
	require.NoError(c.t, json.Unmarshal(f.JSON, &w))
	err := fault.FromWire(&w)
	require.ErrorIs(c.t, err, sentinel)
	require.Equal(c.t, field, w.Field)
	return fault.From("", err)
}

// ended requires that the daemon has closed the connection; the answer to a request that was cut short may come first.
func (c *testClient) ended() {
	c.t.Helper()
	var err error
	for err == nil {
		_, err = wire.ReadFrame(c.conn, wire.LocalLimits)
	}
	require.True(c.t, errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET), "%v", err)
}

func body[T any](t testing.TB, f wire.Frame) T {
	t.Helper()
	require.Equal(t, wire.KindOK, f.Kind, "%s", f.JSON)
	var v T
	require.NoError(t, f.Decode(&v))
	return v
}

const memfdName = "kvxfer-localapi-test"

// memfd makes memory that may be registered.
func memfd(t testing.TB, size int64) int {
	t.Helper()
	fd, err := unix.MemfdCreate(memfdName, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, size))
	require.NoError(t, unix.Fallocate(fd, 0, 0, size))
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	require.NoError(t, err)
	return fd
}

// leaks counts this process's descriptors of the test's memfds, and its mappings of them.
func leaks(t testing.TB) (fds, maps int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, f := range all {
		if to, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil && strings.Contains(to, memfdName) {
			fds++
		}
	}
	raw, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return fds, strings.Count(string(raw), memfdName)
}

func region(name string, size uint64) *wire.RegisterRegion {
	return &wire.RegisterRegion{Name: name, ID: strings.Repeat("0f", 16), Kind: "memfd", Size: size}
}

func cache(name string) *wire.RegisterCache {
	return &wire.RegisterCache{Name: name, Region: 7, Model: "m", NumBlocks: 4, Layout: layout.Layout{
		Layers: 2, KVHeads: 1, HeadDim: 8, DType: "float32", BlockTokens: 4, Order: "HND", TPSize: 1}}
}
