package simtest

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
)

// Options shape a world.
type Options struct {
	Seed   uint64
	Nodes  int // 1 to 26; default 2
	Faults simfabric.Faults
	Chunk  uint64                  // bytes in a packet; default 128, so that a piece is several packets
	Skew   func(int) time.Duration // what node i's clock is ahead; nil: nothing
	Trace  func(simfabric.Step)
}

// World is nodes that can reach each other.
type World struct {
	T      testing.TB
	Fabric *simfabric.Fabric
	Nodes  []*Node // of the goroutine that calls; Restart replaces one

	regions  atomic.Uint64
	epochs   atomic.Uint64
	ids      atomic.Uint64 // of sessions
	wg       sync.WaitGroup
	mu       sync.Mutex
	links    []*link
	nodes    []*Node    // Nodes, for Dial
	attached []attached // clients, those of before, too
	tickets  map[string]*Lease
	adverts  map[string]*Advert  // by ticket
	scatters map[string]*Scatter // by transfer id
}

// attached is a Client or a Raw.
type attached interface {
	node() *Node
	name() string
	lose()
	free()
	Check()
	Lost() bool
	Unmapped() bool
}

// Node is a daemon without its doors: engine, provider and store.
type Node struct {
	Name     string
	Epoch    string
	Engine   *xfer.Engine
	Provider *simfabric.Node
	w        *World
	clock    *clock
	files    *vfs.MemFS
	store    *blockdb.DB
	paused   atomic.Bool
	dead     atomic.Bool
}

// NewWorld starts the nodes. It is called inside a synctest bubble; the world ends with the test.
func NewWorld(t testing.TB, o Options) *World {
	t.Helper()
	if o.Nodes == 0 {
		o.Nodes = 2
	}
	if o.Chunk == 0 {
		o.Chunk = 128
	}
	f, err := simfabric.New(o.Seed, simfabric.Options{Faults: o.Faults, Chunk: o.Chunk, Trace: o.Trace, MaxOpBytes: 1 << 10, MaxInFlight: 64, MaxInFlightLen: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	w := &World{T: t, Fabric: f, tickets: map[string]*Lease{}, adverts: map[string]*Advert{}, scatters: map[string]*Scatter{}}
	t.Cleanup(w.close)
	for i := range o.Nodes {
		skew := time.Duration(0)
		if o.Skew != nil {
			skew = o.Skew(i)
		}
		w.Nodes = append(w.Nodes, w.newNode(string(rune('a'+i)), newClock(skew), vfs.NewCrashableMem()))
	}
	w.nodes = slices.Clone(w.Nodes)
	return w
}

func (w *World) newNode(name string, c *clock, files *vfs.MemFS) *Node {
	db, _, err := blockdb.Open(blockdb.Options{Dir: "db", FS: files, BootID: "boot", BallastBytes: 64 << 10, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.T.Fatal(err)
	}
	n := &Node{Name: name, Epoch: fmt.Sprintf("%032x", w.epochs.Add(1)), w: w, clock: c, files: files, store: db}
	n.Provider = w.Fabric.NodeWithClock(n.Name, c)
	n.Engine = xfer.New(xfer.Options{Node: n.Name, Epoch: n.Epoch, BootID: "boot", Addr: n.Name, Clock: c,
		Providers: []rdma.Provider{n.Provider}, Store: db, Dialer: n, Directory: noDirectory{},
		Tracer: noop.NewTracerProvider().Tracer(""), Logger: slog.New(slog.DiscardHandler)})
	return n
}

type noDirectory struct{}

func (noDirectory) PutCache(xfer.CacheEntry) {}
func (noDirectory) DropCache(string, string) {}

// Pass lets time go by and waits until nothing moves that time alone does not move.
func (w *World) Pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// CutLinks breaks every link and its session without a word to either side.
func (w *World) CutLinks() {
	for _, l := range w.liveLinks() {
		l.cut()
	}
}

func (w *World) liveLinks() (live []*link) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.links {
		if !l.closed() {
			live = append(live, l)
		}
	}
	w.links = append([]*link(nil), live...)
	return live
}

// Pause stops a node as SIGSTOP stops a process. Its engine must not be called until Resume.
func (n *Node) Pause() {
	n.paused.Store(true)
	n.clock.pause()
	n.w.Fabric.Pause(n.Provider)
}

// Resume lets it go on.
func (n *Node) Resume() {
	n.paused.Store(false)
	n.clock.resume()
	n.w.Fabric.Resume(n.Provider)
}

// Paused says whether it is paused.
func (n *Node) Paused() bool { return n.paused.Load() }

// Dead says whether Restart has replaced it.
func (n *Node) Dead() bool { return n.dead.Load() }

// Restart ends node i's daemon as kill -9 does, at this instant, and starts it again under a new epoch with what its
// store's files held. Its clients hear nothing any more; Reattach brings one back. What other nodes have sent to the old
// daemon finds nobody, and its own bytes still come late to them.
func (w *World) Restart(i int) *Node {
	old := w.Nodes[i]
	files := old.files.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))})
	old.dead.Store(true)
	w.Fabric.Kill(old.Provider)
	for _, l := range w.liveLinks() {
		if l.node == old {
			l.cut()
		}
	}
	for _, c := range w.everybody() {
		if c.node() == old {
			c.lose()
		}
	}
	// What the old process still does here nobody sees: its files were copied, its node is dead, its clients are deaf.
	old.stop()
	n := w.newNode(old.Name, old.clock, files)
	w.mu.Lock()
	w.nodes[i] = n
	w.mu.Unlock()
	w.Nodes[i] = n
	return n
}

func (w *World) everybody() []attached {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.attached)
}

// lease finds a lease by its ticket.
func (w *World) lease(ticket string) *Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tickets[ticket]
}

// stop ends a node's goroutines.
func (n *Node) stop() {
	n.Engine.Close()
	for _, l := range n.w.liveLinks() {
		if l.node == n {
			l.Close(nil)
		}
	}
	if err := n.Provider.Close(); err != nil {
		n.w.T.Error(err)
	}
	if err := n.store.Close(); err != nil {
		n.w.T.Error(err)
	}
}

// Check compares every image with the memory, that of clients that are gone included.
func (w *World) Check() {
	w.T.Helper()
	for _, c := range w.everybody() {
		c.Check()
	}
}

// close ends everything. Afterwards nothing may be left: the bubble looks for goroutines, each client for its mapping.
func (w *World) close() {
	for _, n := range w.Nodes {
		if n.Paused() {
			n.Resume()
		}
	}
	for _, n := range w.Nodes {
		n.stop()
	}
	w.wg.Wait()
	w.Check()
	for _, c := range w.attached {
		if !c.Unmapped() && !c.Lost() {
			w.T.Errorf("the memory of client %s is still mapped", c.name())
		}
	}
	w.Fabric.Close() // from here on no packet can touch memory
	for _, c := range w.attached {
		c.free()
	}
}
