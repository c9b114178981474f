package natskv_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/registry/natskv"
	rt "github.com/kvxfer/kvxfer/registry/registrytest"
)

// TestTwoHundredNodes simulates a fleet on a cluster of three servers that loses one, and prints its figures, which
// docs/registry.md repeats. `make registry-scale` runs it at full size; a test run has a smaller fleet, since all of it
// shares this machine's cores, and looks at the outcome alone.
func TestTwoHundredNodes(t *testing.T) {
	count, window, heartbeat, ttl := 24, time.Second, 300*time.Millisecond, 3*time.Second
	full := false
	if s := os.Getenv("KVXFER_SCALE_NODES"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err)
		count, window, heartbeat, ttl, full = n, 20*time.Second, natskv.DefaultHeartbeat, 6*time.Second, true
	}
	t.Logf("a view takes %d bytes a node with two caches", viewBytes(t, 1000))
	c := newCluster(t)
	before := heap()
	f := newFleet(t, c, count, heartbeat, ttl)
	began := time.Now()
	f.announce(t)
	f.converge(t, count)
	t.Logf("%d nodes connected, announced and seen by all in %s", count, round(time.Since(began)))
	t.Logf("heap %d KiB a node, servers and connections included", (heap()-before)/int64(count)>>10)

	start, first := c.traffic(t), time.Now()
	if full {
		time.Sleep(4 * heartbeat) // the rest of the announcements
		start, first = c.traffic(t), time.Now()
	}
	own := f.received()
	time.Sleep(window) // no condition to wait for: traffic in a time is what is measured
	took, end := time.Since(first).Seconds(), c.traffic(t)
	own = f.received() - own
	t.Logf("steady, heartbeat %s: servers in %.0f msg/s %.0f KiB/s, out %.0f msg/s %.0f KiB/s; a node receives %.1f msg/s", heartbeat,
		float64(end.inMsgs-start.inMsgs)/took, float64(end.inBytes-start.inBytes)/took/1024, float64(end.outMsgs-start.outMsgs)/took, float64(end.outBytes-start.outBytes)/took/1024, float64(own)/took/float64(count))

	began = time.Now()
	late := f.open(t, count)
	require.NoError(t, late.Announce(rt.Context(t), rt.NewNode("late"), registry.TakeOver{}))
	f.converge(t, count+1)
	t.Logf("one more node is seen by all after %s", round(time.Since(began)))

	began = time.Now()
	rt.Kill(late)
	f.converge(t, count)
	t.Logf("a killed node vanished everywhere after %s (time to live %s)", round(time.Since(began)), ttl)

	lost := c.leader()
	require.GreaterOrEqual(t, lost, 0)
	began = time.Now()
	c.stop(lost)
	f.converge(t, count)
	late = f.open(t, count)
	require.NoError(t, late.Announce(rt.Context(t), rt.NewNode("second"), registry.TakeOver{}))
	f.converge(t, count+1)
	t.Logf("after the loss of the stream's leader a new node is announced and seen by all after %s", round(time.Since(began)))
	f.connected(t)
	t.Logf("all views follow again after %s; reconnections:\n%s", round(time.Since(began)), f.histogram(began))
	began = time.Now()
	c.start(t, lost)
	rt.Kill(late)
	f.converge(t, count)
	t.Logf("with the server back a killed node vanished everywhere after %s", round(time.Since(began)))
	for _, d := range f.nodes {
		select {
		case err := <-d.Err():
			t.Errorf("a node lost its name: %v", err)
		default:
		}
	}
}

// viewBytes is what a view of so many nodes takes of the heap, a node.
func viewBytes(t *testing.T, nodes int) int64 {
	t.Helper()
	before := heap()
	v, feed := registry.NewView()
	for i := range nodes {
		n := rt.NewNode(fmt.Sprintf("n%04d", i))
		n.Format = registry.Format
		raw, err := n.Encode()
		require.NoError(t, err)
		require.NoError(t, feed.Put(n.Key().String(), raw))
		for cache := range 2 {
			c := rt.NewCache(fmt.Sprintf("kv%d", cache))
			c.Format, c.Node, c.Epoch = registry.Format, n.Name, n.Epoch
			raw, err := c.Encode()
			require.NoError(t, err)
			require.NoError(t, feed.Put(c.Key().String(), raw))
		}
	}
	require.Len(t, v.Caches(registry.DefaultTenant), 2*nodes) // the lists that are answered from, too
	took := (heap() - before) / int64(nodes)
	runtime.KeepAlive(feed)
	return took
}

func round(d time.Duration) time.Duration { return d.Round(time.Millisecond) }

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// fleet is many nodes in one process.
type fleet struct {
	c              *cluster
	heartbeat, ttl time.Duration
	nodes          []*natskv.Directory

	mu    sync.Mutex
	conns []*nats.Conn
	back  []time.Time // when a connection was made again
}

func newFleet(t *testing.T, c *cluster, count int, heartbeat, ttl time.Duration) *fleet {
	f := &fleet{c: c, heartbeat: heartbeat, ttl: ttl, nodes: make([]*natskv.Directory, count)}
	var wg sync.WaitGroup
	for i := range f.nodes {
		wg.Go(func() { f.nodes[i] = f.open(t, i) })
	}
	wg.Wait()
	for _, d := range f.nodes {
		require.NotNil(t, d)
	}
	return f
}

// open connects a node; nil when it fails.
func (f *fleet) open(t *testing.T, i int) *natskv.Directory {
	o := f.c.options(i, f.heartbeat, f.ttl)
	url := o.URL
	o.URL = ""
	o.Dial = func(opts ...nats.Option) (*nats.Conn, error) {
		nc, err := nats.Connect(url, append(opts, nats.DontRandomize())...)
		if err == nil {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.conns = append(f.conns, nc)
			go f.watch(nc, nc.StatusChanged(nats.CONNECTED, nats.CLOSED))
		}
		return nc, err
	}
	d, err := natskv.Connect(rt.Context(t), o)
	if err != nil {
		t.Errorf("node %d: %v", i, err)
		return nil
	}
	t.Cleanup(func() { rt.Kill(d) })
	return d
}

func (f *fleet) watch(nc *nats.Conn, status chan nats.Status) {
	for s := range status {
		if s == nats.CLOSED {
			nc.RemoveStatusListener(status)
			return
		}
		f.mu.Lock()
		f.back = append(f.back, time.Now())
		f.mu.Unlock()
	}
}

func (f *fleet) announce(t *testing.T) {
	t.Helper()
	errs := make(chan error, len(f.nodes))
	ctx := rt.Context(t)
	for i, d := range f.nodes {
		go func() {
			err := d.Announce(ctx, rt.NewNode(fmt.Sprintf("n%03d", i)), registry.TakeOver{})
			for cache := range 2 {
				if err == nil {
					err = d.PutCache(ctx, rt.NewCache(fmt.Sprintf("kv%d", cache)))
				}
			}
			errs <- err
		}()
	}
	for range f.nodes {
		require.NoError(t, <-errs)
	}
}

// converge waits until every view shows that many nodes, and the caches of the fleet's own.
func (f *fleet) converge(t *testing.T, nodes int) {
	t.Helper()
	for i, d := range f.nodes {
		v := d.View()
		rt.Until(t, v, fmt.Sprintf("node %d to see %d nodes", i, nodes), func() bool {
			return len(v.Nodes()) == nodes && len(v.Caches(registry.DefaultTenant)) == 2*len(f.nodes)
		})
	}
}

func (f *fleet) connected(t *testing.T) {
	t.Helper()
	for _, d := range f.nodes {
		rt.Until(t, d.View(), "connected", d.View().Connected)
	}
}

// received counts the messages that all nodes received.
func (f *fleet) received() (n uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, nc := range f.conns {
		n += nc.Stats().InMsgs
	}
	return n
}

// histogram shows when connections were made again, in steps of 100 ms.
func (f *fleet) histogram(since time.Time) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	steps := map[int]int{}
	for _, at := range f.back {
		if at.After(since) {
			steps[int(at.Sub(since)/(100*time.Millisecond))]++
		}
	}
	var keys []int
	for k := range steps {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var b strings.Builder
	for _, k := range keys {
		fmt.Fprintf(&b, "%5d ms %4d %s\n", k*100, steps[k], strings.Repeat("#", (steps[k]+1)/2))
	}
	return b.String()
}
