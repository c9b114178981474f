package xfer_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// rawWorker is a client with one raw region.
func rawWorker(t testing.TB, nd *node, name string, size uint64) *worker {
	w := &worker{t: t, node: nd, changed: make(chan struct{}), layers: map[uint64][]uint32{}, leases: map[uint64]wire.LeaseEvent{},
		notes: map[uint64][]byte{}, transfers: map[uint64]wire.TransferEvent{}, released: map[uint64]bool{}, ends: map[uint64]int{},
		free: map[uint64]int{}, whenFree: map[uint64]func(){}, whenHolder: map[uint64]func(wire.HolderEvent){}}
	var err error
	w.id, err = nd.engine.AddClient(xfer.ClientInfo{Tenant: "default", Process: name}, w)
	require.NoError(t, err)
	w.mem = newMemory(t, size)
	info, err := nd.engine.RegisterRegion(w.t.Context(), w.id, wire.RegisterRegion{Name: name, ID: fmt.Sprintf("%032x", w.mem.ino), Kind: "memfd", Size: size}, w.mem)
	require.NoError(t, err)
	w.region = info.Region
	return w
}

func (w *worker) advertise(mode string, uses uint32, ttl time.Duration, spans ...wire.RegionSpan) wire.LeaseInfo {
	w.t.Helper()
	info, err := w.node.engine.Advertise(w.t.Context(), w.id, wire.Advertise{Region: w.region, Mode: mode, Uses: uses, TTLMillis: ttl.Milliseconds()}, spans)
	require.NoError(w.t, err)
	return info
}

func (w *worker) scatter(mode, ticket, note string, ranges ...wire.ScatterRange) uint64 {
	w.t.Helper()
	info, err := w.node.engine.Scatter(w.id, wire.ScatterRequest{Region: w.region, Mode: mode, Ticket: ticket, TimeoutMillis: time.Minute.Milliseconds(), Notification: []byte(note)}, ranges)
	require.NoError(w.t, err)
	return info.Transfer
}

func TestScatterAgreesWithCopy(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b")
	for round := range 8 {
		size := 1 + rng.Uint64N(3<<20)
		a, b := rawWorker(t, net.nodes["a"], "a", size), rawWorker(t, net.nodes["b"], "b", size)
		a.fill(rng)
		b.fill(rng)
		want, mode := bytes.Clone(b.mem.bytes), "write"
		if round%2 == 1 {
			mode, want = "read", bytes.Clone(a.mem.bytes)
		}
		var list []wire.ScatterRange
		var sum, at uint64
		for at < size && len(list) < 600 { // disjoint on both sides, so that order does not matter
			n := min(rng.Uint64N(1<<uint(1+rng.IntN(18))), size-at)
			list = append(list, wire.ScatterRange{Local: at, Remote: at, Len: n})
			if mode == "write" {
				copy(want[at:at+n], a.mem.bytes[at:at+n])
			} else {
				copy(want[at:at+n], b.mem.bytes[at:at+n])
			}
			sum += n
			at += n + rng.Uint64N(64)
		}
		rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		lease := b.advertise(mode, 0, time.Minute)
		end := a.transferEnd(a.scatter(mode, lease.Ticket, "round", list...))
		require.Nil(t, end.Error)
		assert.Equal(t, sum, end.Bytes)
		b.until("the holder's end", func() bool { return len(b.holders) == 1 })
		assert.Equal(t, "round", string(b.holderSay[0]))
		assert.Equal(t, sum, b.holders[0].Bytes)
		if mode == "write" {
			require.True(t, bytes.Equal(want, b.mem.bytes))
		} else {
			require.True(t, bytes.Equal(want, a.mem.bytes))
		}
		for _, w := range []*worker{a, b} {
			require.NoError(t, w.node.engine.DeregisterRegion(t.Context(), w.id, w.region))
			assert.True(t, w.mem.unmapped.Load())
			w.node.engine.ClientGone(w.id)
		}
		assert.Equal(t, fault.LeaseRevoked, code(t, b.leaseEnd(lease.Lease).Error), "deregistering ends the advertisement")
	}
}

func TestScatterStaysInsideWhatIsAdvertised(t *testing.T) {
	net := newNetwork(t, "a", "b")
	a, b := rawWorker(t, net.nodes["a"], "a", 4096), rawWorker(t, net.nodes["b"], "b", 4096)
	for i := range a.mem.bytes {
		a.mem.bytes[i] = 7
	}
	lease := b.advertise("write", 0, time.Minute, wire.RegionSpan{Off: 100, Len: 50})
	for _, r := range []wire.ScatterRange{{Remote: 99, Len: 10}, {Remote: 145, Len: 6}, {Remote: 4000, Len: 96}, {Remote: 1 << 40, Len: 1}} {
		assert.Equal(t, fault.OutOfBounds, code(t, a.transferEnd(a.scatter("write", lease.Ticket, "", r)).Error))
	}
	require.True(t, bytes.Equal(make([]byte, 4096), b.mem.bytes))
	require.Nil(t, a.transferEnd(a.scatter("write", lease.Ticket, "", wire.ScatterRange{Remote: 100, Len: 50})).Error)
	assert.Equal(t, bytes.Repeat([]byte{7}, 50), b.mem.bytes[100:150])

	_, err := a.node.engine.Scatter(a.id, wire.ScatterRequest{Region: a.region, Mode: "write", Ticket: lease.Ticket, TimeoutMillis: 1000}, []wire.ScatterRange{{Local: 4090, Len: 7}})
	require.ErrorIs(t, err, fault.ErrOutOfBounds)
	_, err = a.node.engine.Scatter(a.id, wire.ScatterRequest{Region: a.region, Mode: "read", Ticket: lease.Ticket, TimeoutMillis: 1000}, nil)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	_, err = b.node.engine.Advertise(t.Context(), b.id, wire.Advertise{Region: b.region, Mode: "write", TTLMillis: 1000}, []wire.RegionSpan{{Off: 4090, Len: 7}})
	require.ErrorIs(t, err, fault.ErrOutOfBounds)
	assert.Equal(t, "spans", fault.From("", err).Field)
}

func TestNotificationAlone(t *testing.T) {
	net := newNetwork(t, "a", "b")
	a, b := rawWorker(t, net.nodes["a"], "a", 4096), rawWorker(t, net.nodes["b"], "b", 4096)
	for _, mode := range []string{"write", "read"} {
		lease := b.advertise(mode, 1, time.Minute)
		note := string(bytes.Repeat([]byte("n"), wire.MaxNotification))
		require.Nil(t, a.transferEnd(a.scatter(mode, lease.Ticket, note)).Error)
		require.Nil(t, b.leaseEnd(lease.Lease).Error, "its one use is over")
		assert.Equal(t, note, string(b.holderSay[len(b.holderSay)-1]))
	}
}

// TestRevokedAdvertisementIsNeverWrittenAgain takes memory back in the middle of many transfers, patterns it and watches.
func TestRevokedAdvertisementIsNeverWrittenAgain(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b")
	const size = 2 << 20
	a, b := rawWorker(t, net.nodes["a"], "a", size), rawWorker(t, net.nodes["b"], "b", size)
	a.fill(rng)
	for range 20 {
		lease := b.advertise("write", 0, time.Minute)
		var transfers []uint64
		for range 1 + rng.IntN(4) {
			transfers = append(transfers, a.scatter("write", lease.Ticket, "", wire.ScatterRange{Len: size}))
		}
		time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
		require.NoError(t, b.node.engine.Revoke(b.id, lease.Lease))
		b.leaseEnd(lease.Lease)
		pattern := byte(rng.Uint32())
		copy(b.mem.bytes, bytes.Repeat([]byte{pattern}, size))
		for _, id := range transfers {
			a.transferEnd(id)
		}
		require.Equal(t, size, bytes.Count(b.mem.bytes, []byte{pattern}), "a byte landed after the fence")
	}
}

func TestDrainEndsAdvertisements(t *testing.T) {
	net := newNetwork(t, "a", "b")
	const size = 4 << 20
	a, b := rawWorker(t, net.nodes["a"], "a", size), rawWorker(t, net.nodes["b"], "b", size)
	idle, busy := b.advertise("write", 0, time.Hour), b.advertise("write", 0, time.Hour)
	transfer := a.scatter("write", busy.Ticket, "", wire.ScatterRange{Len: size})
	b.node.engine.Drain(t.Context()) // its context has no end: it returns only when nothing is left
	a.transferEnd(transfer)
	assert.Equal(t, fault.Draining, code(t, b.leaseEnd(idle.Lease).Error))
	assert.Equal(t, fault.Draining, code(t, b.leaseEnd(busy.Lease).Error))
}
