package verbs

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
)

const (
	blockLen = 8 << 10
	blocks   = 64 // of the target's memory, and slots of the initiator's
)

// TestHistories runs random histories over devices whose packets are delayed, lost, doubled, reordered and held, whose ports go down,
// whose queue pairs fail and whose calls are refused, and compares every image with what the contract permits:
//   - a block that was fenced keeps what its owner then writes into it, whatever arrives later;
//   - the bytes of a WRITE that succeeded are in place, those of a READ are what the target's owner had there;
//   - the local memory of an operation that completed is not touched;
//   - each operation completes once, and each WRITE that succeeded has arrived.
func TestHistories(t *testing.T) {
	for _, c := range []struct {
		name  string
		rails int
		opt   Options
	}{
		{"one rail", 1, Options{}},
		{"two rails", 2, Options{}},
		{"one rail without windows", 1, Options{NoWindows: true}},
		{"two rails without windows", 2, Options{NoWindows: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.opt.LostAfter = patience
			h := newHistory(t, c.rails, quick(c.opt))
			for range 400 {
				h.step()
			}
			h.end()
		})
	}
}

// block is one of the target's. Outside of windows it is its owner's.
type block struct {
	key   rdma.Key // of the window that it is in; 0: none
	busy  uint64   // the operation on it
	dirty bool     // an operation on it failed: what is in it is open until the window is fenced
	seed  uint64   // of the pattern in it, as far as that is known
}

type window1 struct {
	access      rdma.Access
	first, last int // blocks
}

// slot is a piece of the initiator's memory that one operation uses at a time.
type slot struct {
	busy uint64
	want []byte // since it was given back
}

type pending struct {
	kind  rdma.OpKind
	block int
	slot  int
	seed  uint64 // what is in the block when it succeeds
	key   rdma.Key
}

type history struct {
	*pair
	t       *testing.T
	rng     *rand.Rand
	rails   int
	blocks  [blocks]block
	slots   [blocks]slot
	windows map[rdma.Key]window1
	pending map[uint64]pending
	arrived map[uint64]bool
	succeed map[uint64]rdma.Key // WRITEs, by tag
	fenced  map[rdma.Key]bool
	lastID  uint64
	seeds   uint64
	restore []func() // of what is held or stalled
	closed  bool     // the session ends
	counts  map[string]int
}

func newHistory(t *testing.T, rails int, opt Options) *history {
	h := &history{pair: newPair(t, blocks*blockLen, rails, opt), t: t, rng: testseed.New(t), rails: rails, windows: map[rdma.Key]window1{},
		pending: map[uint64]pending{}, arrived: map[uint64]bool{}, succeed: map[uint64]rdma.Key{}, fenced: map[rdma.Key]bool{}, counts: map[string]int{}}
	for k := range blocks {
		h.fill(k)
		h.slots[k].want = bytes.Clone(h.slotMem(k))
	}
	return h
}

func (h *history) mem(k int) []byte     { return h.dst[k*blockLen : (k+1)*blockLen] }
func (h *history) slotMem(k int) []byte { return h.src[k*blockLen : (k+1)*blockLen] }

func patterned(seed uint64) []byte {
	b := make([]byte, blockLen)
	pattern(b, seed)
	return b
}

// fill is the owner writing into a block of his.
func (h *history) fill(k int) {
	h.seeds++
	h.blocks[k] = block{seed: h.seeds}
	pattern(h.mem(k), h.seeds)
}

// check looks whether a block holds what it must.
func (h *history) check(k int, why string) {
	b := &h.blocks[k]
	if !b.dirty && b.busy == 0 {
		require.True(h.t, bytes.Equal(patterned(b.seed), h.mem(k)), "block %d changed: %s", k, why)
	}
}

func (h *history) step() {
	switch r := h.rng.IntN(100); {
	case r < 15:
		h.grant()
	case r < 60:
		for range 1 + h.rng.IntN(8) {
			h.post()
		}
	case r < 72:
		h.fence()
	case r < 76:
		h.cancel()
	case r < 92:
		h.fault()
	default:
		h.mend()
	}
	h.collect()
	if h.rng.IntN(4) == 0 {
		time.Sleep(time.Duration(h.rng.IntN(2000)) * time.Microsecond)
	}
}

func (h *history) grant() {
	first := h.rng.IntN(blocks)
	last := first
	for last < blocks && last-first < 6 && h.blocks[last].key == 0 {
		h.check(last, "its owner had it")
		last++
	}
	if last == first {
		return
	}
	access := rdma.AccessWrite
	if h.rng.IntN(3) == 0 {
		access = rdma.AccessRead
	}
	key := h.pair.grant(h.t, access, first*blockLen, (last-first)*blockLen)
	for k := first; k < last; k++ {
		h.blocks[k].key = key
	}
	h.windows[key] = window1{access, first, last}
	h.counts["grant"]++
}

// some picks an entry of a map; Go's order of maps is no seed's.
func some[V any](h *history, m map[rdma.Key]V) (rdma.Key, bool) {
	var keys []rdma.Key
	for k := rdma.Key(1); len(keys) < len(m); k++ {
		if _, ok := m[k]; ok {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return 0, false
	}
	return keys[h.rng.IntN(len(keys))], true
}

func (h *history) post() {
	key, ok := some(h, h.windows)
	s := h.rng.IntN(blocks)
	if !ok || h.slots[s].busy != 0 {
		return
	}
	w := h.windows[key]
	k := w.first + h.rng.IntN(w.last-w.first)
	b := &h.blocks[k]
	if b.busy != 0 || b.dirty {
		return
	}
	require.True(h.t, bytes.Equal(h.slots[s].want, h.slotMem(s)), "slot %d changed after its operation had completed", s)
	h.check(k, "before an operation")
	h.lastID++
	p := pending{kind: rdma.OpRead, block: k, slot: s, seed: b.seed, key: key}
	if w.access == rdma.AccessWrite {
		h.seeds++
		p.kind, p.seed = rdma.OpWrite, h.seeds
		pattern(h.slotMem(s), h.seeds)
	}
	op := rdma.Op{Kind: p.kind, ID: h.lastID, Local: h.srcR, Remote: key, Tag: h.lastID, Ranges: h.cut(s*blockLen, k*blockLen)}
	n, err := h.ini.Post([]rdma.Op{op})
	require.NoError(h.t, err)
	if n == 0 { // the window is full
		h.slots[s].want = bytes.Clone(h.slotMem(s))
		h.lastID--
		return
	}
	b.busy, h.slots[s].busy = h.lastID, h.lastID
	h.pending[h.lastID] = p
	h.counts["post"]++
}

// cut makes a scatter list over a whole block, in any order.
func (h *history) cut(local, remote int) (out []rdma.Range) {
	n := 1 << h.rng.IntN(7)
	for k := range n {
		size := blockLen / n
		out = append(out, rdma.Range{Local: uint64(local + k*size), Remote: uint64(remote + k*size), Len: uint64(size)})
	}
	h.rng.Shuffle(n, func(i, k int) { out[i], out[k] = out[k], out[i] })
	return out
}

// fence takes a window back; at once its owner writes into the blocks, and what comes later must not show.
func (h *history) fence() {
	key, ok := some(h, h.windows)
	if !ok {
		return
	}
	w := h.windows[key]
	delete(h.windows, key)
	require.NoError(h.t, h.tgt.Fence(key))
	h.fenced[key] = true
	for k := w.first; k < w.last; k++ {
		h.fill(k)
	}
	h.counts["fence"]++
}

func (h *history) cancel() {
	for id := h.lastID; id > 0 && id+20 > h.lastID; id-- {
		if _, ok := h.pending[id]; ok && h.rng.IntN(3) == 0 {
			h.ini.Cancel(id)
			h.counts["cancel"]++
		}
	}
}

// collect takes in what both sides say.
func (h *history) collect() {
	h.poll(h.b)
	for _, e := range h.queue[h.b] {
		if h.closed && e.Kind == rdma.EventDown {
			continue
		}
		require.Equal(h.t, rdma.EventArrival, e.Kind)
		h.arrived[e.Tag] = true
	}
	h.poll(h.a)
	for _, e := range h.queue[h.a] {
		require.Equal(h.t, rdma.EventCompletion, e.Kind)
		h.completed(e)
	}
	h.queue[h.a], h.queue[h.b] = nil, nil
}

func (h *history) completed(e rdma.Event) {
	p, ok := h.pending[e.Op]
	require.True(h.t, ok, "operation %d completed twice: %s", e.Op, e.Status)
	delete(h.pending, e.Op)
	s := &h.slots[p.slot]
	s.busy, s.want = 0, bytes.Clone(h.slotMem(p.slot))
	b := &h.blocks[p.block]
	mine := b.key == p.key && b.busy == e.Op // its window is not fenced
	if mine {
		b.busy = 0
	}
	h.counts[e.Status.String()]++
	switch {
	case e.Status != 0:
		if !h.closed {
			require.Contains(h.t, []fault.Code{fault.Cancelled, fault.StaleKey}, e.Status)
		}
		require.True(h.t, e.Status != fault.StaleKey || !mine, "an operation ended as if its window were fenced")
		if mine && p.kind == rdma.OpWrite {
			b.dirty = true
		}
	case p.kind == rdma.OpWrite:
		h.succeed[e.Op] = p.key
		if mine {
			b.seed = p.seed
			h.check(p.block, "a WRITE that succeeded is not in place")
		}
	default:
		require.True(h.t, bytes.Equal(patterned(p.seed), s.want), "a READ that succeeded brought other bytes")
	}
}

func (h *history) wires() (out []*softnic.Wire) {
	for r := range h.rails {
		out = append(out, h.there(r), h.pair.back(r))
	}
	return out
}

func (h *history) fault() {
	r := h.rng.IntN(h.rails)
	adapter := h.ha.Adapter(fmt.Sprintf("soft%d", r))
	if h.rng.IntN(2) == 0 {
		adapter = h.hb.Adapter(fmt.Sprintf("soft%d", r))
	}
	wires := h.wires()
	w := wires[h.rng.IntN(len(wires))]
	switch what := h.rng.IntN(6); what {
	case 0:
		w.SetFaults(softnic.Faults{Delay: time.Duration(h.rng.IntN(500)) * time.Microsecond, Jitter: time.Duration(h.rng.IntN(500)) * time.Microsecond,
			Loss: h.rng.Float64() * 0.03, Double: h.rng.Float64() * 0.2, Reorder: h.rng.Float64() * 0.1, ReorderBy: 3 * time.Millisecond})
	case 1:
		w.Hold()
		h.restore = append(h.restore, w.Release)
	case 2:
		adapter.SetPortActive(1, false)
		h.restore = append(h.restore, func() { adapter.SetPortActive(1, true) })
	case 3:
		n := h.a
		if h.rng.IntN(2) == 0 {
			n = h.b
		}
		d := n.devices[r]
		d.mu.RLock()
		var numbers []uint32
		for qpn := range d.owners {
			numbers = append(numbers, qpn)
		}
		d.mu.RUnlock()
		if len(numbers) > 0 {
			qpn := numbers[h.rng.IntN(len(numbers))]
			_ = h.ha.Adapter(d.info.Name).FailQP(qpn) || h.hb.Adapter(d.info.Name).FailQP(qpn)
		}
	case 4:
		calls := []string{"Reset", "Invalidate", "Bind", "Post", "PostRecv", "Connect", "NewQP", "NewWindow"}
		call := calls[h.rng.IntN(len(calls))]
		left := 1
		adapter.Refuse(func(c string) error {
			if c == call && left > 0 {
				left--
				return fault.New(fault.Internal, c, "refused by the test")
			}
			return nil
		})
	case 5:
		h.restore = append(h.restore, h.relay.Stall())
	}
	h.counts["fault"]++
}

// mend ends what was done to the wires and ports.
func (h *history) mend() {
	for _, f := range h.restore {
		f()
	}
	h.restore = nil
}

// end lets everything finish, takes everything back, and looks at all of it.
func (h *history) end() {
	h.mend()
	for _, w := range h.wires() {
		w.SetFaults(softnic.Faults{})
	}
	done := func() bool {
		h.collect()
		return len(h.pending) == 0
	}
	eventually(h.t, "every operation completes", done)
	eventually(h.t, "every WRITE that succeeded arrives", func() bool {
		h.collect()
		for tag, key := range h.succeed {
			if !h.arrived[tag] && !h.fenced[key] {
				return false
			}
		}
		return true
	})
	for k := range blocks {
		h.check(k, "at the end")
	}
	// Once more with packets in flight, whose devices are then gone on one rail and whose session ends.
	for range 20 {
		h.grant()
		h.post()
	}
	if h.rng.IntN(2) == 0 {
		h.ha.Adapter("soft0").Remove()
	} else {
		h.hb.Adapter("soft0").Remove()
	}
	if h.rails > 1 {
		for range 20 {
			h.post()
		}
		eventually(h.t, "every operation completes on the rail that is left", done)
	}
	h.closed = true
	require.NoError(h.t, h.ini.Close())
	eventually(h.t, "every operation completes with the session", done)
	require.NoError(h.t, h.tgt.Close())
	require.NoError(h.t, h.a.Close())
	require.NoError(h.t, h.b.Close())
	h.t.Log(h.counts)
}
