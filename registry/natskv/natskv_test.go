package natskv_test

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/registry/embedded"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
	"github.com/kvxfer/kvxfer/registry/natskv"
	rt "github.com/kvxfer/kvxfer/registry/registrytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	beat = 200 * time.Millisecond
	ttl  = 4 * time.Second // twenty heartbeats: a busy machine must not lose a node
)

// site is one registry: a server that can be killed and started again on its port.
type site struct {
	dir    string
	listen string
	access natsaccess.Files
	srv    *embedded.Server
}

func newSite(t *testing.T) *site {
	s := &site{dir: filepath.Join(t.TempDir(), "nats"), listen: "127.0.0.1:0"}
	s.start(t)
	t.Cleanup(func() { s.stop(t) })
	return s
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func (s *site) start(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { // the port may be in use for a moment longer
		srv, err := embedded.Start(embedded.Options{StoreDir: s.dir, Listen: s.listen, Access: s.access, Logger: quiet()})
		if err != nil {
			return false
		}
		s.srv = srv
		return true
	}, rt.Wait, 100*time.Millisecond)
	s.listen = s.srv.ClientURL()[len("nats://"):]
}

func (s *site) stop(t *testing.T) {
	t.Helper()
	if s.srv != nil {
		require.NoError(t, s.srv.Shutdown(rt.Context(t)))
		s.srv = nil
	}
}

func (s *site) options() natskv.Options {
	return natskv.Options{URL: "nats://" + s.listen, Access: s.access, Name: "test", Heartbeat: beat, TTL: ttl, Logger: quiet()}
}

func (s *site) open(t *testing.T, o natskv.Options) *natskv.Directory {
	t.Helper()
	d, err := natskv.Connect(rt.Context(t), o)
	require.NoError(t, err)
	t.Cleanup(func() { rt.Kill(d) })
	return d
}

func (s *site) Open(t *testing.T) registry.Directory { t.Helper(); return s.open(t, s.options()) }

// bucket gives the raw store through a connection of its own.
func (s *site) bucket(t *testing.T) (jetstream.JetStream, jetstream.KeyValue) {
	t.Helper()
	nc, err := nats.Connect("nats://" + s.listen)
	require.NoError(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	kv, err := js.KeyValue(rt.Context(t), natskv.DefaultBucket)
	require.NoError(t, err)
	return js, kv
}

func (s *site) PutRaw(t *testing.T, key string, value []byte) {
	t.Helper()
	rt.Kill(s.Open(t)) // whoever misses the bucket makes it
	_, kv := s.bucket(t)
	_, err := kv.Put(rt.Context(t), key, value)
	require.NoError(t, err)
}

func (s *site) Wipe(t *testing.T) {
	t.Helper()
	s.stop(t)
	s.start(t)
}

func TestConformance(t *testing.T) {
	t.Parallel() // it mostly waits
	rt.Run(t, func(t *testing.T) rt.Harness { return newSite(t) })
}

func announce(t *testing.T, d registry.Directory, name string) registry.Node {
	t.Helper()
	n := rt.NewNode(name)
	require.NoError(t, d.Announce(rt.Context(t), n, registry.TakeOver{}))
	return n
}

func TestServerRestartedEmpty(t *testing.T) {
	s := newSite(t)
	o := s.options()
	o.TTL = rt.Wait // the grace, which no busy machine may outlast
	a, b := s.open(t, o), s.open(t, o)
	na := announce(t, a, "a")
	require.NoError(t, a.PutCache(rt.Context(t), rt.NewCache("kv")))
	v := b.View()
	rt.Until(t, v, "cache", func() bool { return len(v.Caches(registry.DefaultTenant)) == 1 })

	s.stop(t)
	rt.Until(t, v, "stale", func() bool { return !v.Connected() })
	have, ok := v.Node("a")
	require.True(t, ok, "the view answers while the server is away")
	assert.Equal(t, na.Epoch, have.Epoch)
	assert.Len(t, v.Caches(registry.DefaultTenant), 1)

	// What is said while the server is away is refused at once and said later.
	require.ErrorIs(t, a.PutCache(rt.Context(t), rt.NewCache("kv2")), fault.ErrRegistryUnavailable)
	require.ErrorIs(t, a.SetDraining(rt.Context(t), true), fault.ErrRegistryUnavailable)
	require.ErrorIs(t, a.DropCache(rt.Context(t), registry.DefaultTenant, "kv"), fault.ErrRegistryUnavailable)

	// From here to the end nothing but the announced changes may happen to the view.
	done := make(chan struct{})
	gone := make(chan bool, 1)
	go func() {
		missed := false
		for {
			changed := v.Changed()
			_, ok := v.Node("a")
			missed = missed || !ok
			select {
			case <-changed:
			case <-done:
				gone <- missed
				return
			}
		}
	}()
	s.start(t)
	rt.Until(t, v, "all said again", func() bool {
		n, _ := v.Node("a")
		_, old := v.Cache("a", registry.DefaultTenant, "kv")
		_, made := v.Cache("a", registry.DefaultTenant, "kv2")
		return v.Connected() && n.Draining && made && !old
	})
	close(done)
	assert.False(t, <-gone, "the node was never missing")
	late := s.Open(t)
	rt.Sees(t, late.View(), na)
}

func TestNodeThatDiedWithTheServerVanishes(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	a, b := s.Open(t), s.Open(t)
	na := announce(t, a, "a")
	rt.Sees(t, b.View(), na)
	s.stop(t)
	rt.Kill(a)
	s.start(t)
	rt.Misses(t, b.View(), "a")
}

func TestBucketDeleted(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	a, b := s.Open(t), s.Open(t)
	na := announce(t, a, "a")
	require.NoError(t, a.PutCache(rt.Context(t), rt.NewCache("kv")))
	rt.Sees(t, b.View(), na)
	js, _ := s.bucket(t)
	require.NoError(t, js.DeleteKeyValue(rt.Context(t), natskv.DefaultBucket))
	// Only the heartbeat can notice: no connection was lost.
	require.Eventually(t, func() bool {
		kv, err := js.KeyValue(rt.Context(t), natskv.DefaultBucket)
		if err != nil {
			return false
		}
		keys, err := kv.Keys(rt.Context(t))
		return err == nil && len(keys) == 3 // the node, its cache and its sign of life
	}, rt.Wait, 50*time.Millisecond)
	late := s.Open(t)
	rt.Sees(t, late.View(), na)
	nc := announce(t, late, "c")
	rt.Sees(t, b.View(), nc)
	rt.Sees(t, a.View(), nc)
}

// b announces nothing, so nothing but the silence tells it that its watch hangs on a bucket that is no more. The new
// bucket's revisions start again below those that b has seen, so the client library waits for what never comes.
func TestSilentWatchIsReplaced(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	b := s.Open(t)
	js, kv := s.bucket(t)
	for range 2000 {
		_, err := kv.Put(rt.Context(t), "other.kind", nil)
		require.NoError(t, err)
	}
	seen := rt.NewNode("seen")
	seen.Format = registry.Format
	raw, err := seen.Encode()
	require.NoError(t, err)
	_, err = kv.Put(rt.Context(t), seen.Key().String(), raw)
	require.NoError(t, err)
	rt.Sees(t, b.View(), seen)
	require.NoError(t, js.DeleteKeyValue(rt.Context(t), natskv.DefaultBucket))
	a := s.Open(t)
	rt.Sees(t, b.View(), announce(t, a, "a"))
	rt.Misses(t, b.View(), "seen")
}

// The node's owner died with the server, so that only the grace can keep it in the view.
func TestRestartDoesNotEmptyTheView(t *testing.T) {
	s := newSite(t)
	o := s.options()
	o.TTL = rt.Wait
	a, b := s.open(t, o), s.open(t, o)
	rt.Sees(t, b.View(), announce(t, a, "a"))
	rt.Kill(a)
	s.stop(t)
	rt.Until(t, b.View(), "stale", func() bool { return !b.View().Connected() })
	s.start(t)
	rt.Until(t, b.View(), "connected", b.View().Connected)
	_, ok := b.View().Node("a")
	assert.True(t, ok)
}

// overwrite puts another node's claim in the place of n's.
func overwrite(t *testing.T, s *site, name string) registry.Node {
	t.Helper()
	thief := rt.NewNode(name)
	thief.Format = registry.Format
	raw, err := thief.Encode()
	require.NoError(t, err)
	_, kv := s.bucket(t)
	_, err = kv.Put(rt.Context(t), thief.Key().String(), raw)
	require.NoError(t, err)
	return thief
}

func TestTakenOver(t *testing.T) {
	s := newSite(t)
	a, b := s.Open(t), s.Open(t)
	announce(t, a, "a")
	thief := overwrite(t, s, "a")
	select {
	case err := <-a.Err():
		require.ErrorIs(t, err, fault.ErrNameTaken)
	case <-time.After(rt.Wait):
		require.FailNow(t, "the loss was not reported")
	}
	require.ErrorIs(t, a.PutCache(rt.Context(t), rt.NewCache("kv")), fault.ErrNameTaken)
	require.ErrorIs(t, a.SetDraining(rt.Context(t), true), fault.ErrNameTaken)
	require.NoError(t, a.Close(rt.Context(t)))
	_, kv := s.bucket(t)
	e, err := kv.Get(rt.Context(t), thief.Key().String())
	require.NoError(t, err, "the loser's Close leaves the winner's entry alone")
	_, epoch, err := registry.DecodeClaim(e.Value())
	require.NoError(t, err)
	assert.Equal(t, thief.Epoch, epoch)
	rt.Sees(t, b.View(), thief)
}

func TestCloseLeavesATakenNameAlone(t *testing.T) {
	s := newSite(t)
	o := s.options()
	o.Heartbeat, o.TTL = time.Minute, 10*time.Minute // no heartbeat comes to notice
	a := s.open(t, o)
	announce(t, a, "a")
	thief := overwrite(t, s, "a")
	require.NoError(t, a.Close(rt.Context(t)))
	_, kv := s.bucket(t)
	_, err := kv.Get(rt.Context(t), thief.Key().String())
	require.NoError(t, err)
}

// A process that was stopped beyond its time to live finds its entry gone, which deleting it plays.
func TestExpiredClaimIsMadeAgain(t *testing.T) {
	s := newSite(t)
	a, b := s.Open(t), s.Open(t)
	na := announce(t, a, "a")
	rt.Sees(t, b.View(), na)
	_, kv := s.bucket(t)
	key := registry.Key{Node: "a"}.String()
	for range 3 {
		e, err := kv.Get(rt.Context(t), key)
		require.NoError(t, err)
		require.NoError(t, kv.Purge(rt.Context(t), key))
		require.Eventually(t, func() bool {
			again, err := kv.Get(rt.Context(t), key)
			return err == nil && again.Revision() > e.Revision()
		}, rt.Wait, 20*time.Millisecond)
	}
	rt.Sees(t, b.View(), na)
}

// lines counts log lines; the handler's own lock does not cover readers.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), s)
}

func TestGarbageIsLoggedOnce(t *testing.T) {
	s := newSite(t)
	var log lines
	o := s.options()
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	d := s.open(t, o)
	for range 3 {
		s.PutRaw(t, "node.bad", []byte("{"))
	}
	rt.Sees(t, d.View(), announce(t, d, "after"))
	assert.Equal(t, 1, log.count("registry entry ignored"))
}

func TestTwentyNodesConverge(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	const count = 20
	errs := make(chan error, count)
	ds := make([]*natskv.Directory, count)
	for i := range ds {
		ds[i] = s.open(t, s.options())
	}
	ctx := rt.Context(t)
	for i, d := range ds {
		go func() {
			err := d.Announce(ctx, rt.NewNode(fmt.Sprintf("node-%02d", i)), registry.TakeOver{})
			if err == nil {
				err = d.PutCache(ctx, rt.NewCache("kv"))
			}
			errs <- err
		}()
	}
	for range ds {
		require.NoError(t, <-errs)
	}
	all := func(n int) {
		for _, d := range ds[:n] {
			v := d.View()
			rt.Until(t, v, "all nodes", func() bool { return len(v.Nodes()) == n && len(v.Caches(registry.DefaultTenant)) == n })
		}
	}
	all(count)
	for _, d := range ds[count/2:] {
		rt.Kill(d)
	}
	all(count / 2)
	s.Wipe(t)
	for _, d := range ds[:count/2] {
		rt.Until(t, d.View(), "connected", d.View().Connected)
	}
	all(count / 2)
}

func TestConnectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	_, err := natskv.Connect(ctx, natskv.Options{URL: "nats://user:secret@127.0.0.1:1", Logger: quiet()})
	require.ErrorIs(t, err, fault.ErrRegistryUnavailable)
	assert.NotContains(t, err.Error(), "secret")
}

func TestConnectWaitsForTheServer(t *testing.T) {
	s := newSite(t)
	s.stop(t)
	got := make(chan error, 1)
	ctx, o := rt.Context(t), s.options()
	go func() {
		d, err := natskv.Connect(ctx, o)
		if err == nil {
			err = d.Close(ctx)
		}
		got <- err
	}()
	s.start(t)
	require.NoError(t, <-got)
}

func TestAnnounceWaitsForTheServer(t *testing.T) {
	s := newSite(t)
	d := s.Open(t)
	s.stop(t)
	got := make(chan error, 1)
	ctx := rt.Context(t)
	n := rt.NewNode("n")
	go func() { got <- d.Announce(ctx, n, registry.TakeOver{}) }()
	s.start(t)
	require.NoError(t, <-got)
	rt.Sees(t, d.View(), n)
}

func TestCloseWhileTheServerIsAway(t *testing.T) {
	s := newSite(t)
	d := s.Open(t)
	announce(t, d, "n")
	s.stop(t)
	rt.Until(t, d.View(), "stale", func() bool { return !d.View().Connected() })
	require.ErrorIs(t, d.Close(rt.Context(t)), fault.ErrRegistryUnavailable)
	require.ErrorIs(t, d.PutCache(rt.Context(t), rt.NewCache("kv")), fault.ErrClosed)
}

func TestInProcess(t *testing.T) {
	srv, err := embedded.Start(embedded.Options{StoreDir: t.TempDir(), Logger: quiet()})
	require.NoError(t, err)
	d, err := natskv.Connect(rt.Context(t), natskv.Options{Dial: srv.Connect, Heartbeat: beat, Logger: quiet()})
	require.NoError(t, err)
	rt.Sees(t, d.View(), announce(t, d, "n"))
	require.NoError(t, d.Close(rt.Context(t)))
	require.NoError(t, srv.Shutdown(rt.Context(t)))
}

func TestForeignBucketIsRefused(t *testing.T) {
	s := newSite(t)
	nc, err := nats.Connect("nats://" + s.listen)
	require.NoError(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	require.NoError(t, err)
	_, err = js.CreateKeyValue(rt.Context(t), jetstream.KeyValueConfig{Bucket: natskv.DefaultBucket, Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	_, err = natskv.Connect(rt.Context(t), s.options())
	require.ErrorIs(t, err, fault.ErrRegistryUnavailable)
	assert.ErrorContains(t, err, "limit marker TTL")
	assert.False(t, fault.From("", err).Retryable())
}

func TestOptions(t *testing.T) {
	for field, o := range map[string]natskv.Options{
		"url":       {},
		"bucket":    {URL: "nats://h:1", Bucket: "a.b"},
		"heartbeat": {URL: "nats://h:1", Heartbeat: time.Millisecond},
		"ttl":       {URL: "nats://h:1", Heartbeat: time.Second, TTL: time.Second},
	} {
		_, err := natskv.Connect(rt.Context(t), o)
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	for _, u := range []string{"http://h:1", "nats://", "h:1", "nats://h:1,", "nats://h:%zz"} {
		_, err := natskv.Connect(rt.Context(t), natskv.Options{URL: u})
		require.ErrorIs(t, err, fault.ErrInvalidArgument, u)
	}
}
