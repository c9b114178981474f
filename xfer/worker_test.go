package xfer_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// memory is an anonymous mapping; after Close it counts as unmapped but stays readable, so that a test can look for
// late bytes.
type memory struct {
	bytes    []byte
	unmapped atomic.Bool
	ino      uint64
}

var inodes atomic.Uint64

func newMemory(t testing.TB, n uint64) *memory {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Munmap(b) })
	return &memory{bytes: b, ino: inodes.Add(1)}
}

func (m *memory) Memory() rdma.Memory {
	return rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(&m.bytes[0]), Len: uint64(len(m.bytes)), Name: "test"}
}
func (m *memory) Object() (uint64, uint64) { return 1, m.ino }
func (m *memory) Close() error             { m.unmapped.Store(true); return nil }

// worker is an attached client with one cache.
type worker struct {
	t      testing.TB
	node   *node
	id     xfer.ClientID
	mem    *memory
	spec   wire.RegisterCache
	cache  uint64
	region uint64

	mu         sync.Mutex
	changed    chan struct{}
	layers     map[uint64][]uint32
	leases     map[uint64]wire.LeaseEvent
	notes      map[uint64][]byte
	transfers  map[uint64]wire.TransferEvent
	released   map[uint64]bool
	granted    []grantedEvent
	holders    []wire.HolderEvent
	holderSay  [][]byte                          // their notifications
	ends       map[uint64]int                    // events that ended a lease or transfer; they share one row of numbers
	free       map[uint64]int                    // times that a lease's or transfer's memory was given back
	whenFree   map[uint64]func()                 // called once, by the engine's goroutine, at that moment
	whenHolder map[uint64]func(wire.HolderEvent) // by lease: called with each holder's end
	prepared   map[uint64]wire.PreparedEvent
	onEvent    func()                            // called by the engine's goroutine with each end
}

func newWorker(t testing.TB, nd *node, name string, l layout.Layout, blocks uint32) *worker {
	return newWorkerOf(t, nd, "default", name, l, blocks)
}

func newWorkerOf(t testing.TB, nd *node, tenant, name string, l layout.Layout, blocks uint32) *worker {
	return newClientOf(t, nd, tenant, name).with(wire.RegisterCache{Name: name, Model: "m", Revision: "1", Layout: l, NumBlocks: blocks})
}

// newClient attaches a client without memory.
func newClient(t testing.TB, nd *node, name string) *worker {
	return newClientOf(t, nd, "default", name)
}

func newClientOf(t testing.TB, nd *node, tenant, name string) *worker {
	w := &worker{t: t, node: nd, changed: make(chan struct{}), layers: map[uint64][]uint32{}, leases: map[uint64]wire.LeaseEvent{},
		notes: map[uint64][]byte{}, transfers: map[uint64]wire.TransferEvent{}, released: map[uint64]bool{}, ends: map[uint64]int{},
		free: map[uint64]int{}, whenFree: map[uint64]func(){}, whenHolder: map[uint64]func(wire.HolderEvent){}, prepared: map[uint64]wire.PreparedEvent{}}
	var err error
	w.id, err = nd.engine.AddClient(xfer.ClientInfo{Tenant: tenant, Process: name}, w)
	require.NoError(t, err)
	return w
}

// with gives a client memory and its cache.
func (w *worker) with(spec wire.RegisterCache) *worker {
	w.mem = newMemory(w.t, layout.Geometry{Layout: spec.Layout, NumBlocks: spec.NumBlocks}.Bytes())
	info, err := w.node.engine.RegisterRegion(w.t.Context(), w.id, wire.RegisterRegion{Name: spec.Name, ID: fmt.Sprintf("%032x", w.mem.ino), Kind: "memfd", Size: uint64(len(w.mem.bytes))}, w.mem)
	require.NoError(w.t, err)
	w.region, spec.Region = info.Region, info.Region
	w.spec = spec
	w.register()
	return w
}

func (w *worker) register() {
	ci, _, err := w.node.engine.RegisterCache(w.t.Context(), w.id, w.spec, nil)
	require.NoError(w.t, err)
	w.cache = ci.Cache
}

func (w *worker) note(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
	close(w.changed)
	w.changed = make(chan struct{})
}

func (w *worker) LayersVisible(v wire.LayersVisible) {
	w.note(func() { w.layers[v.Lease] = append(w.layers[v.Lease], v.Layers...) })
}

func (w *worker) LeaseEnded(ev wire.LeaseEvent, note []byte) {
	if w.onEvent != nil {
		w.onEvent()
	}
	w.note(func() { w.leases[ev.Lease], w.notes[ev.Lease] = ev, note; w.ends[ev.Lease]++; w.given(ev.Lease) })
}

// grantedEvent is an EVENT_GRANTED.
type grantedEvent struct {
	wire.GrantedEvent
	blocks []uint32
}

func (w *worker) Granted(ev wire.GrantedEvent, blocks []uint32) {
	w.note(func() { w.granted = append(w.granted, grantedEvent{ev, blocks}) })
}

func (w *worker) Prepared(ev wire.PreparedEvent) {
	w.note(func() {
		if w.prepared == nil {
			w.prepared = map[uint64]wire.PreparedEvent{}
		}
		w.prepared[ev.Transfer] = ev
	})
}

func (w *worker) TransferEnded(ev wire.TransferEvent) {
	if w.onEvent != nil {
		w.onEvent()
	}
	w.note(func() {
		w.transfers[ev.Transfer] = ev
		if w.ends[ev.Transfer]++; ev.Released {
			w.given(ev.Transfer)
		}
	})
}

func (w *worker) HolderEnded(ev wire.HolderEvent, note []byte) {
	w.note(func() {
		w.holders, w.holderSay = append(w.holders, ev), append(w.holderSay, note)
		if f := w.whenHolder[ev.Lease]; f != nil {
			f(ev)
		}
	})
}

func (w *worker) Released(r wire.Released) {
	w.note(func() { w.released[r.Transfer] = true; w.given(r.Transfer) })
}

// given notes that memory is the client's again, which uses it at once.
func (w *worker) given(id uint64) {
	w.free[id]++
	if f := w.whenFree[id]; f != nil {
		f()
	}
}

// atHolder calls f with each end of a holder of a lease.
func (w *worker) atHolder(lease uint64, f func(wire.HolderEvent)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.whenHolder[lease] = f
}

// atGiven calls f when the memory of a lease or transfer is given back, or now where it was.
func (w *worker) atGiven(id uint64, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.whenFree[id] = f; w.free[id] > 0 {
		f()
	}
}

// until waits for a condition on the worker's events.
func (w *worker) until(what string, cond func() bool) {
	w.t.Helper()
	deadline := time.After(patience)
	for {
		w.mu.Lock()
		ok, ch := cond(), w.changed
		w.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-ch:
		case <-deadline:
			w.t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

func (w *worker) leaseEnd(id uint64) wire.LeaseEvent {
	w.t.Helper()
	var ev wire.LeaseEvent
	w.until("the lease's end", func() (ok bool) { ev, ok = w.leases[id]; return ok })
	return ev
}

func (w *worker) transferEnd(id uint64) wire.TransferEvent {
	w.t.Helper()
	var ev wire.TransferEvent
	w.until("the transfer's end", func() (ok bool) { ev, ok = w.transfers[id]; return ok })
	return ev
}

func (w *worker) lease(ttl time.Duration, blocks ...uint32) wire.LeaseInfo {
	w.t.Helper()
	info, err := w.node.engine.Lease(w.t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: ttl.Milliseconds()}, blocks)
	require.NoError(w.t, err)
	return info
}

func (w *worker) push(ticket string, timeout time.Duration, blocks ...uint32) uint64 {
	w.t.Helper()
	info, err := w.node.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Layerwise: true}, blocks)
	require.NoError(w.t, err)
	return info.Transfer
}

func (w *worker) layer(transfer uint64, layer uint32) {
	w.node.engine.PushLayer(w.id, wire.LayerPart{Transfer: transfer, Layer: layer})
}

func (w *worker) fill(rng *rand.Rand) {
	for i := range w.mem.bytes {
		w.mem.bytes[i] = byte(rng.Uint32())
	}
}

// block returns a block's bytes in one plane of one layer.
func (w *worker) block(layer uint32, plane uint64, block uint32) []byte {
	g := layout.Geometry{Layout: w.spec.Layout, NumBlocks: w.spec.NumBlocks}
	off := g.Offset(layer, plane, block)
	return w.mem.bytes[off : off+w.spec.Layout.PlaneBlockBytes()]
}
