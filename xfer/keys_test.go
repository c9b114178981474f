package xfer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

func (w *worker) publish(keys []string, blocks ...uint32) {
	w.t.Helper()
	var all [][]byte
	for _, k := range keys {
		all = append(all, []byte(k))
	}
	info, err := w.node.engine.Publish(w.id, wire.Publish{Cache: w.cache, KeyBytes: uint32(len(keys[0]))}, blocks, all)
	require.NoError(w.t, err)
	assert.NotZero(w.t, info.Generation)
}

func lookupOf(w *worker, keys []string) wire.Lookup {
	return wire.Lookup{Model: w.spec.Model, Revision: w.spec.Revision, Compat: w.spec.Compat, Layout: w.spec.Layout, KeyBytes: uint32(len(keys[0])), TimeoutMillis: 30_000}
}

func (w *worker) lookup(keys ...string) wire.LookupInfo {
	w.t.Helper()
	info, err := w.node.engine.Lookup(w.t.Context(), w.id, lookupOf(w, keys), []byte(strings.Join(keys, "")))
	require.NoError(w.t, err)
	return info
}

func (w *worker) open(h wire.Holder, keys ...string) (string, error) {
	info, err := w.node.engine.Open(w.t.Context(), w.id, wire.Open{Node: h.Node, Epoch: h.Epoch, Addr: h.Addr, Cache: h.Cache, Model: w.spec.Model,
		Revision: w.spec.Revision, Compat: w.spec.Compat, Layout: w.spec.Layout, KeyBytes: uint32(len(keys[0])), TTLMillis: 60_000, TimeoutMillis: 30_000},
		[]byte(strings.Join(keys, "")))
	return info.Ticket, err
}

// TestLookupAgainstNaiveModel publishes, evicts and leases at random on three nodes; each lookup finds what a model
// finds that knows only which keys each cache has.
func TestLookupAgainstNaiveModel(t *testing.T) {
	rng := testseed.New(t)
	names := []string{"a", "b", "c"}
	net := newNetwork(t, names...)
	const blocks = 12
	var all []*worker
	have := map[string]map[uint32]string{}
	for i := range 5 {
		w := newWorker(t, net.nodes[names[i%3]], fmt.Sprint("w", i), small, blocks)
		all = append(all, w)
		have[w.spec.Name] = map[uint32]string{}
	}
	// Another tenant's, model's, revision's and layout's caches are not holders, whatever they have.
	odd := newClient(t, net.nodes["b"], "odd")
	odd.with(wire.RegisterCache{Name: "odd", Model: "m", Revision: "2", Layout: small, NumBlocks: blocks})
	var every []string
	for i := range 10 {
		every = append(every, fmt.Sprintf("key%c", 'a'+i))
	}
	odd.publish(every, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	stranger := &worker{t: t, node: net.nodes["a"], changed: make(chan struct{})}
	var err error
	stranger.id, err = stranger.node.engine.AddClient(xfer.ClientInfo{Tenant: "else"}, stranger)
	require.NoError(t, err)
	stranger.with(wire.RegisterCache{Name: "stranger", Model: "m", Revision: "1", Layout: small, NumBlocks: blocks})
	stranger.publish(every, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)

	for step := range 400 {
		w := all[rng.IntN(len(all))]
		mine := have[w.spec.Name]
		some := ids(rng.Perm(blocks)[:1+rng.IntN(4)])
		switch rng.IntN(5) {
		case 0, 1, 2:
			var keys []string
			for _, b := range some {
				mine[b] = every[rng.IntN(len(every))]
				keys = append(keys, mine[b])
			}
			w.publish(keys, some...)
		case 3:
			require.NoError(t, w.node.engine.Evict(t.Context(), w.id, w.cache, some))
			for _, b := range some {
				delete(mine, b)
			}
		default:
			l := w.lease(time.Hour, some...)
			require.NoError(t, w.node.engine.Revoke(w.id, l.Lease))
			w.leaseEnd(l.Lease)
			for _, b := range some {
				delete(mine, b)
			}
		}
		var keys []string
		for _, i := range rng.Perm(len(every))[:1+rng.IntN(5)] {
			keys = append(keys, every[i])
		}
		want := map[string]uint32{}
		for name, m := range have {
			set := map[string]bool{}
			for _, k := range m {
				set[k] = true
			}
			for _, k := range keys {
				if !set[k] {
					break
				}
				want[name]++
			}
		}
		asker := all[rng.IntN(len(all))]
		got := asker.lookup(keys...)
		require.Empty(t, got.Unasked)
		found := map[string]uint32{}
		for i, h := range got.Holders {
			found[h.Cache] = h.Blocks
			require.Equal(t, net.nodes[h.Node].epoch, h.Epoch)
			if i > 0 {
				require.GreaterOrEqual(t, got.Holders[i-1].Blocks, h.Blocks)
			}
		}
		require.Equal(t, want, found, "step %d: %v", step, keys)
	}
	local := lookupOf(all[0], every[:1])
	local.LocalOnly = true
	info, err := all[0].node.engine.Lookup(t.Context(), all[0].id, local, []byte(every[0]))
	require.NoError(t, err)
	for _, h := range info.Holders {
		assert.Equal(t, "a", h.Node)
	}
}

// TestLookupNamesWhoDidNotAnswer and goes on with the others; long lists of keys travel in parts.
func TestLookupNamesWhoDidNotAnswer(t *testing.T) {
	net := newNetwork(t, "a", "b", "c")
	a, b := newWorker(t, net.nodes["a"], "a", small, 600), newWorker(t, net.nodes["b"], "b", small, 600)
	newWorker(t, net.nodes["c"], "c", small, 600)
	var keys []string
	var blocks []uint32
	for i := range 600 {
		keys, blocks = append(keys, fmt.Sprintf("%0255d", i)), append(blocks, uint32(i))
	}
	b.publish(keys, blocks...)
	net.nodes["c"].epoch = "ffffffffffffffffffffffffffffffff" // as the directory has it: a node that cannot be reached
	net.mu.Lock()
	c := net.nodes["c"]
	delete(net.nodes, "c")
	net.mu.Unlock()
	got := a.lookup(keys...)
	assert.Equal(t, []string{"c"}, got.Unasked)
	require.Len(t, got.Holders, 1)
	assert.EqualValues(t, 600, got.Holders[0].Blocks)
	require.NoError(t, b.node.engine.Evict(t.Context(), b.id, b.cache, []uint32{300}))
	assert.EqualValues(t, 300, a.lookup(keys...).Holders[0].Blocks)
	require.NoError(t, b.node.engine.Evict(t.Context(), b.id, b.cache, []uint32{0}))
	assert.Empty(t, a.lookup(keys...).Holders)
	_, err := a.open(wire.Holder{Node: "b", Epoch: b.node.epoch, Addr: "b:1", Cache: "b"}, keys...)
	assert.Equal(t, "keys", fault.From("", err).Field, "they do not fit into one request")
	net.mu.Lock()
	net.nodes["c"] = c
	net.mu.Unlock()
}

// TestOpenReadsPublishedBlocks pulls from a holder on another node and on the own one, whose client hears nothing.
func TestOpenReadsPublishedBlocks(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b")
	owner := newWorker(t, net.nodes["a"], "owner", small, 16)
	owner.fill(rng)
	owner.publish([]string{"k0", "k1", "k2"}, 4, 9, 2)
	for _, node := range []string{"b", "a"} {
		reader := newWorker(t, net.nodes[node], "reader"+node, small, 16)
		h := reader.lookup("k0", "k1", "k2", "k3").Holders
		require.Len(t, h, 1)
		require.EqualValues(t, 3, h[0].Blocks)
		ticket, err := reader.open(h[0], "k0", "k1", "k2")
		require.NoError(t, err)
		assert.EqualValues(t, 3, owner.blockStates().Held)
		_, err = owner.node.engine.Lease(t.Context(), owner.id, wire.LeaseRequest{Cache: owner.cache, Mode: "write", TTLMillis: 1000}, []uint32{9})
		require.ErrorIs(t, err, fault.ErrBlocksBusy)
		require.Nil(t, reader.transferEnd(reader.pull(ticket, time.Minute, "", 1, 3, 5)).Error)
		for layer := range small.Layers {
			for i, b := range []uint32{4, 9, 2} {
				require.Equal(t, owner.block(layer, 1, b), reader.block(layer, 1, []uint32{1, 3, 5}[i]))
			}
		}
		second := reader.pull(ticket, time.Minute, "", 6, 7, 8)
		assert.Equal(t, fault.TicketBound, code(t, reader.transferEnd(second).Error), "for one reader")
		require.Eventually(t, func() bool { return owner.blockStates().Held == 0 }, patience, time.Millisecond)

		_, err = reader.open(h[0], "k0", "k1", "k3")
		require.ErrorIs(t, err, fault.ErrNotFound)
		assert.Contains(t, err.Error(), "the first 2 of 3 keys")
		_, err = reader.open(h[0], "k0", "k0")
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		other := h[0]
		other.Cache = "nobody"
		_, err = reader.open(other, "k0")
		require.ErrorIs(t, err, fault.ErrNotFound)
		old := h[0]
		old.Epoch = strings.Repeat("e", 32)
		_, err = reader.open(old, "k0")
		require.ErrorIs(t, err, fault.ErrStaleEpoch)
		reader.spec.Compat = "fp8 scales"
		_, err = reader.open(h[0], "k0")
		require.ErrorIs(t, err, fault.ErrLayoutMismatch)
		assert.Equal(t, "compat", fault.From("", err).Field)
		reader.spec.Compat = ""

		// EVICT takes the blocks back from readers too.
		ticket, err = reader.open(h[0], "k2")
		require.NoError(t, err)
		require.NoError(t, owner.node.engine.Evict(t.Context(), owner.id, owner.cache, []uint32{2}))
		end := reader.transferEnd(reader.pull(ticket, time.Minute, "", 1))
		assert.Equal(t, fault.LeaseRevoked, code(t, end.Error))
		owner.publish([]string{"k2"}, 2)
	}
	assert.Empty(t, owner.leases)
	assert.Empty(t, owner.holders)
	assert.Empty(t, owner.granted)
}

// TestOpensHaveTheirOwnQuota: a peer that opens without end is refused, and the owner's client leases on. What nobody
// reads ends with the peer's link.
func TestOpensHaveTheirOwnQuota(t *testing.T) {
	net := newNetwork(t, "a", "b")
	owner, reader := newWorker(t, net.nodes["a"], "owner", small, 16), newWorker(t, net.nodes["b"], "reader", small, 16)
	owner.publish([]string{"k0"}, 4)
	h := reader.lookup("k0").Holders[0]
	for range 4096 {
		_, err := reader.open(h, "k0")
		require.NoError(t, err)
	}
	_, err := reader.open(h, "k0")
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	owner.lease(time.Hour, 1)
	net.cutBetween("a", "b")
	require.Eventually(t, func() bool { return owner.blockStates().Held == 0 }, patience, time.Millisecond)
	_, err = reader.open(h, "k0")
	require.NoError(t, err)

	// A client of the holder's own node that comes and goes holds nothing either.
	net.cutBetween("a", "b")
	require.Eventually(t, func() bool { return owner.blockStates().Held == 0 }, patience, time.Millisecond)
	guest := newWorker(t, net.nodes["a"], "guest", small, 16)
	_, err = guest.open(h, "k0")
	require.NoError(t, err)
	require.EqualValues(t, 1, owner.blockStates().Held)
	guest.node.engine.ClientGone(guest.id)
	require.Eventually(t, func() bool { return owner.blockStates().Held == 0 }, patience, time.Millisecond)
}

// TestKeysAfterARegistration: what is vouched for is found again, and what was leased is not.
func TestKeysAfterARegistration(t *testing.T) {
	net := newNetwork(t, "a")
	w := newWorker(t, net.nodes["a"], "w", small, 8)
	w.publish([]string{"k0", "k1", "k2"}, 0, 1, 2)
	r, err := w.node.engine.Publish(w.id, wire.Publish{Cache: w.cache, KeyBytes: 2}, []uint32{3}, [][]byte{[]byte("k3")})
	require.NoError(t, err)
	l := w.lease(time.Hour, 1)
	_, err = w.node.engine.Publish(w.id, wire.Publish{Cache: w.cache, KeyBytes: 2}, []uint32{1}, [][]byte{[]byte("k1")})
	require.ErrorIs(t, err, fault.ErrBlocksBusy)
	_, err = w.node.engine.Publish(w.id, wire.Publish{Cache: w.cache, KeyBytes: 2}, []uint32{5, 6}, [][]byte{[]byte("k1")})
	assert.Equal(t, "keys", fault.From("", err).Field)
	require.NoError(t, w.node.engine.Revoke(w.id, l.Lease))
	w.leaseEnd(l.Lease)
	assert.EqualValues(t, 1, w.lookup("k0", "k1", "k2").Holders[0].Blocks)
	w.node.engine.ClientGone(w.id)

	again := newClient(t, net.nodes["a"], "w")
	again.mem = w.mem
	info, err := again.node.engine.RegisterRegion(t.Context(), again.id, wire.RegisterRegion{Name: "w", ID: fmt.Sprintf("%032x", w.mem.ino), Kind: "memfd", Size: uint64(len(w.mem.bytes))}, w.mem)
	require.NoError(t, err)
	again.spec = w.spec
	again.spec.Region = info.Region
	_, served, err := again.node.engine.RegisterCache(t.Context(), again.id, again.spec, []wire.Vouch{{Block: 3, Generation: r.Generation}, {Block: 1, Generation: r.Generation}})
	require.NoError(t, err)
	assert.Equal(t, []uint32{3}, served)
	assert.Len(t, again.lookup("k3").Holders, 1)
	assert.Empty(t, again.lookup("k0").Holders, "it was not vouched for")
}
