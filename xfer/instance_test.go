package xfer_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

var engineKey = []byte("the engine's own secret")

// newInstance makes the ranks of an engine, one on each node.
func newInstance(t testing.TB, net *network, name string, blocks uint32, nodes ...string) (ranks []*worker) {
	for i, node := range nodes {
		l := small
		l.TPRank, l.TPSize = uint32(i), uint32(len(nodes))
		ranks = append(ranks, newClient(t, net.nodes[node], fmt.Sprint(name, i)).with(wire.RegisterCache{Name: fmt.Sprint(name, i), Model: "m",
			Revision: "1", Layout: l, NumBlocks: blocks, Instance: name, InstanceKey: engineKey}))
	}
	return ranks
}

func (w *worker) leaseInstance(r wire.LeaseRequest, blocks ...uint32) (info wire.LeaseInfo, err error) {
	w.t.Helper()
	if r.InstanceKey == nil {
		r.InstanceKey = engineKey
	}
	if r.Mode == "" {
		r.Mode = "write"
	}
	if r.TTLMillis == 0 {
		r.TTLMillis = 60_000
	}
	answers := 0
	err = w.node.engine.LeaseInstance(w.t.Context(), w.id, r, blocks, func(i wire.LeaseInfo) { info = i; answers++ })
	assert.Equal(w.t, err == nil, answers == 1)
	return info, err
}

func (w *worker) mustLease(instance string, blocks ...uint32) wire.LeaseInfo {
	w.t.Helper()
	info, err := w.leaseInstance(wire.LeaseRequest{Instance: instance}, blocks...)
	require.NoError(w.t, err)
	return info
}

// part waits until the rank was told of the lease.
func (w *worker) part(info wire.LeaseInfo) (ev grantedEvent) {
	w.t.Helper()
	w.until("EVENT_GRANTED", func() bool {
		i := slices.IndexFunc(w.granted, func(g grantedEvent) bool { return g.LeaseID == info.LeaseID })
		if i >= 0 {
			ev = w.granted[i]
		}
		return i >= 0
	})
	return ev
}

func (w *worker) pushAs(ticket, transfer string, attempt uint32, blocks ...uint32) uint64 {
	w.t.Helper()
	info, err := w.node.engine.Push(w.id, wire.PushRequest{Cache: w.cache, Ticket: ticket, TimeoutMillis: 60_000, Layerwise: true,
		TransferIdentity: wire.TransferIdentity{TransferID: transfer, Attempt: attempt}}, blocks)
	require.NoError(w.t, err)
	return info.Transfer
}

func (w *worker) pushAll(transfer uint64, note string) {
	for layer := range w.spec.Layout.Layers {
		w.layer(transfer, layer)
	}
	w.node.engine.PushFinish(w.id, transfer, []byte(note))
}

func (w *worker) blockStates() wire.BlocksInfo {
	w.t.Helper()
	info, _, err := w.node.engine.Blocks(w.id, w.cache)
	require.NoError(w.t, err)
	return info
}

func (w *worker) untilFree() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		s := w.blockStates()
		return s.Leased+s.Revoking+s.Committed+s.Held == 0
	}, patience, time.Millisecond)
}

const firstTransfer, secondTransfer = "0000000000000000000000000000000a", "0000000000000000000000000000000b"

// TestInstanceLeaseOverTwoNodes: a process without memory, on a node with a rank or without one, leases the blocks of both
// ranks; two sources write them as one transfer.
func TestInstanceLeaseOverTwoNodes(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "d0", "d1", "p", "x")
	dst := newInstance(t, net, "dec", 30, "d0", "d1")
	src := newInstance(t, net, "pre", 30, "p", "p")
	for round, node := range []string{"d0", "x", "d1"} {
		asker := newClient(t, net.nodes[node], "asker")
		for i := range src {
			src[i].fill(rng)
			dst[i].fill(rng)
		}
		from, to := ids(rng.Perm(30)[:7]), ids(rng.Perm(30)[:7])
		info := asker.mustLease("dec", to...)
		assert.EqualValues(t, 2, info.Ranks)
		assert.Zero(t, info.Generation)
		var parts []grantedEvent
		for _, d := range dst {
			p := d.part(info)
			assert.Equal(t, to, p.blocks)
			assert.Equal(t, d.cache, p.Cache)
			assert.NotZero(t, p.Generation)
			assert.Equal(t, "write", p.Mode)
			parts = append(parts, p)
		}
		transfer := fmt.Sprintf("%032x", 100+round)
		a, b := src[0].pushAs(info.Ticket, transfer, 0, from...), src[1].pushAs(info.Ticket, transfer, 0, from...)
		src[0].pushAll(a, "zero")
		require.Nil(t, src[0].transferEnd(a).Error)
		require.Nil(t, dst[0].leaseEnd(parts[0].Lease).Error)
		asker.mu.Lock()
		assert.Empty(t, asker.layers[info.Lease], "no layer is visible on every rank")
		assert.Empty(t, asker.leases)
		asker.mu.Unlock()
		src[1].pushAll(b, "one")
		end := asker.leaseEnd(info.Lease)
		require.Nil(t, end.Error)
		assert.Equal(t, 2*7*small.BlockBytes(), end.Bytes)
		assert.Equal(t, transfer, end.TransferID)
		assert.Equal(t, "p", end.Peer)
		assert.Equal(t, "zero", string(asker.notes[info.Lease]))
		assert.ElementsMatch(t, []uint32{0, 1, 2, 3}, asker.layers[info.Lease])
		for i, d := range dst {
			ev := d.leaseEnd(parts[i].Lease)
			require.Nil(t, ev.Error)
			assert.Equal(t, parts[i].Generation, ev.Generation)
			assert.Equal(t, []string{"zero", "one"}[i], string(d.notes[parts[i].Lease]))
			for layer := range small.Layers {
				for j := range to {
					require.Equal(t, src[i].block(layer, 0, from[j]), d.block(layer, 0, to[j]))
				}
			}
		}
		assert.Equal(t, 1, asker.ends[info.Lease])
		asker.node.engine.ClientGone(asker.id)
		require.NoError(t, dst[0].node.engine.Evict(t.Context(), dst[0].id, dst[0].cache, to))
		require.NoError(t, dst[1].node.engine.Evict(t.Context(), dst[1].id, dst[1].cache, to))
	}
}

// TestSecondTransferIsRefusedOnEveryRank: a proxy hedges the request. The first transfer owns the parts that it has not
// bound yet as well.
func TestSecondTransferIsRefusedOnEveryRank(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "p", "q")
	dst := newInstance(t, net, "dec", 8, "d0", "d1")
	p, q := newInstance(t, net, "pre", 8, "p", "p"), newInstance(t, net, "hedge", 8, "q", "q")
	asker := newClient(t, net.nodes["d0"], "asker")
	info := asker.mustLease("dec", 1, 2)
	first := p[1].pushAs(info.Ticket, firstTransfer, 1, 3, 4)
	p[1].pushAll(first, "")
	require.Nil(t, p[1].transferEnd(first).Error)
	for _, x := range q {
		end := x.transferEnd(x.pushAs(info.Ticket, secondTransfer, 1, 3, 4))
		assert.Equal(t, fault.TicketBound, code(t, end.Error), "rank %d", x.spec.Layout.TPRank)
		assert.False(t, end.Error.MayHaveWritten)
	}
	again := p[1].transferEnd(p[1].pushAs(info.Ticket, firstTransfer, 1, 3, 4))
	assert.Equal(t, fault.TicketBound, code(t, again.Error), "the same part a second time")
	second := p[0].pushAs(info.Ticket, firstTransfer, 1, 3, 4)
	p[0].pushAll(second, "")
	require.Nil(t, p[0].transferEnd(second).Error)
	require.Nil(t, asker.leaseEnd(info.Lease).Error)
	_ = dst
}

// TestOneTransferWinsEverywhere lets the ranks of two sources bind in random orders, at the same time: on every rank the
// same one wins, and the whole is committed by it.
func TestOneTransferWinsEverywhere(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "d0", "d1", "p", "q")
	dst := newInstance(t, net, "dec", 8, "d0", "d1", "d0")
	sources := [][]*worker{newInstance(t, net, "pre", 8, "p", "q", "p"), newInstance(t, net, "hedge", 8, "q", "p", "q")}
	for round := range 40 {
		asker := newClient(t, net.nodes[[]string{"d0", "d1", "p"}[rng.IntN(3)]], "asker")
		info := asker.mustLease("dec", 5)
		type bind struct{ source, rank int }
		var all []bind
		for s := range sources {
			for r := range dst {
				all = append(all, bind{s, r})
			}
		}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		var wg sync.WaitGroup
		var mu sync.Mutex
		won := map[int]int{}
		for _, b := range all {
			w := sources[b.source][b.rank]
			wg.Go(func() {
				id := w.pushAs(info.Ticket, fmt.Sprintf("%031x%x", 1000+round, b.source), 1, 2)
				w.pushAll(id, "")
				end := w.transferEnd(id)
				mu.Lock()
				defer mu.Unlock()
				if end.Error == nil {
					won[b.source]++
				} else {
					assert.Equal(t, fault.TicketBound, code(t, end.Error), "%+v", end.Error)
				}
			})
			if rng.IntN(2) == 0 {
				time.Sleep(time.Duration(rng.IntN(300)) * time.Microsecond) // changes who is first, nothing depends on it
			}
		}
		wg.Wait()
		require.Len(t, won, 1, "round %d", round)
		for _, n := range won {
			require.Equal(t, len(dst), n, "round %d", round)
		}
		require.Nil(t, asker.leaseEnd(info.Lease).Error)
		asker.node.engine.ClientGone(asker.id)
	}
}

// TestInstanceLeaseIsAllOrNone: one rank refuses, so no part is left when the error is answered.
func TestInstanceLeaseIsAllOrNone(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "x")
	dst := newInstance(t, net, "dec", 8, "d0", "d1")
	for _, node := range []string{"d0", "d1", "x"} {
		asker := newClient(t, net.nodes[node], "asker")
		for i, busy := range dst {
			own := busy.lease(time.Hour, 3)
			_, err := asker.leaseInstance(wire.LeaseRequest{Instance: "dec"}, 2, 3)
			require.ErrorIs(t, err, fault.ErrBlocksBusy)
			fe := fault.From("", err)
			assert.Equal(t, busy.node.name, fe.Peer)
			assert.Equal(t, busy.spec.Name, fe.Region)
			assert.Zero(t, dst[1-i].blockStates().Leased, "asked at %s", node)
			assert.Zero(t, dst[1-i].blockStates().Revoking)
			require.NoError(t, busy.node.engine.Revoke(busy.id, own.Lease))
			busy.leaseEnd(own.Lease)
		}
		assert.Empty(t, asker.leases, "nobody is told of what was never answered")
		for name, r := range map[string]struct {
			r      wire.LeaseRequest
			blocks []uint32
			want   error
			field  string
		}{
			"key":      {wire.LeaseRequest{Instance: "dec", InstanceKey: []byte("not the engine's secret")}, []uint32{1}, fault.ErrPermissionDenied, "instance_key"},
			"nobody":   {wire.LeaseRequest{Instance: "else"}, []uint32{1}, fault.ErrNotFound, "instance"},
			"no name":  {wire.LeaseRequest{}, []uint32{1}, fault.ErrInvalidArgument, "instance"},
			"no block": {wire.LeaseRequest{Instance: "dec"}, nil, fault.ErrInvalidArgument, "blocks"},
			"range":    {wire.LeaseRequest{Instance: "dec"}, []uint32{8}, fault.ErrInvalidArgument, "blocks"},
			"twice":    {wire.LeaseRequest{Instance: "dec"}, []uint32{1, 1}, fault.ErrInvalidArgument, "blocks"},
			"many":     {wire.LeaseRequest{Instance: "dec"}, make([]uint32, 1<<14+1), fault.ErrInvalidArgument, "blocks"},
			"ttl":      {wire.LeaseRequest{Instance: "dec", TTLMillis: -1}, []uint32{1}, fault.ErrInvalidArgument, "ttl_ms"},
		} {
			_, err := asker.leaseInstance(r.r, r.blocks...)
			require.ErrorIs(t, err, r.want, name)
			if fe := fault.From("", err); name != "no name" {
				assert.Equal(t, r.field, fe.Field, name)
			}
		}
		asker.node.engine.ClientGone(asker.id)
	}
	for _, d := range dst {
		d.untilFree()
	}
	l := small
	l.TPRank, l.TPSize = 1, 3
	newClient(t, net.nodes["x"], "third").with(wire.RegisterCache{Name: "odd", Model: "m", Layout: l, NumBlocks: 8, Instance: "gap", InstanceKey: engineKey})
	_, err := newClient(t, net.nodes["x"], "a").leaseInstance(wire.LeaseRequest{Instance: "gap"}, 1)
	require.ErrorIs(t, err, fault.ErrNotFound)
	assert.Contains(t, err.Error(), "rank 0 of 3")
	newInstance(t, net, "twice", 8, "d0")
	l.TPRank, l.TPSize = 0, 1
	newClient(t, net.nodes["x"], "b").with(wire.RegisterCache{Name: "other", Model: "m", Layout: l, NumBlocks: 8, Instance: "twice", InstanceKey: engineKey})
	_, err = newClient(t, net.nodes["d0"], "c").leaseInstance(wire.LeaseRequest{Instance: "twice"}, 1)
	require.ErrorIs(t, err, fault.ErrAlreadyExists)
}

// TestOneRankFailsTheWhole: rank 0 is committed when rank 1 ends in another way; nothing stays committed.
func TestOneRankFailsTheWhole(t *testing.T) {
	for _, node := range []string{"d0", "d1", "x"} {
		for name, c := range map[string]struct {
			fail func(net *network, rank *worker, part uint64)
			want fault.Code
		}{
			"revoked": {func(_ *network, w *worker, part uint64) { assert.NoError(t, w.node.engine.Revoke(w.id, part)) }, fault.LeaseRevoked},
			"gone":    {func(_ *network, w *worker, _ uint64) { w.node.engine.ClientGone(w.id) }, fault.ClientGone},
			"evicted": {func(_ *network, w *worker, _ uint64) {
				assert.NoError(t, w.node.engine.Evict(t.Context(), w.id, w.cache, []uint32{1}))
			}, fault.LeaseRevoked},
			"lost": {func(net *network, _ *worker, _ uint64) { net.cutBetween("d1", "d0"); net.cutBetween("d1", "x") }, fault.PeerLost},
		} {
			t.Run(node+" "+name, func(t *testing.T) {
				net := newNetwork(t, "d0", "d1", "x", "p")
				dst, src := newInstance(t, net, "dec", 8, "d0", "d1"), newInstance(t, net, "pre", 8, "p", "p")
				asker := newClient(t, net.nodes[node], "asker")
				info := asker.mustLease("dec", 1, 2)
				a, b := src[0].pushAs(info.Ticket, firstTransfer, 1, 3, 4), src[1].pushAs(info.Ticket, firstTransfer, 1, 3, 4)
				src[0].pushAll(a, "first")
				require.Nil(t, src[0].transferEnd(a).Error)
				src[1].layer(b, 0)
				dst[1].until("a layer", func() bool { return len(dst[1].granted) > 0 && len(dst[1].layers[dst[1].granted[0].Lease]) > 0 })
				c.fail(net, dst[1], dst[1].part(info).Lease)
				end := asker.leaseEnd(info.Lease)
				require.NotNil(t, end.Error)
				want := c.want
				assert.Equal(t, want, code(t, end.Error), "%+v", end.Error)
				if name != "lost" {
					assert.Equal(t, "d1", end.Error.Peer)
					assert.True(t, end.Error.MayHaveWritten)
				}
				assert.Empty(t, asker.notes[info.Lease])
				require.NotNil(t, src[1].transferEnd(b).Error)
				dst[0].untilFree()
				if name != "gone" {
					dst[1].untilFree()
				}
				assert.Equal(t, 1, asker.ends[info.Lease])
			})
		}
	}
}

// TestWhatIsKeptOutlivesTheAsker: once the whole is committed and its owners know, the asker's end changes nothing.
func TestWhatIsKeptOutlivesTheAsker(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "x", "p")
	dst, src := newInstance(t, net, "dec", 8, "d0", "d1"), newInstance(t, net, "pre", 8, "p", "p")
	asker := newClient(t, net.nodes["x"], "asker")
	info := asker.mustLease("dec", 1, 2)
	for _, s := range src {
		id := s.pushAs(info.Ticket, firstTransfer, 1, 3, 4)
		s.pushAll(id, "")
		require.Nil(t, s.transferEnd(id).Error)
	}
	require.Nil(t, asker.leaseEnd(info.Lease).Error)
	asker.mustLease("dec", 5) // behind the word that the parts are kept
	net.cut()
	for _, d := range dst {
		d.until("the second lease's end", func() bool { return len(d.leases) == 2 })
		assert.EqualValues(t, 2, d.blockStates().Committed)
	}
}

// TestAskerIsLost: the node that made the lease, or its client, ends in the middle. Its parts are revoked, and what was
// committed is evicted: nobody will hear that the whole is.
func TestAskerIsLost(t *testing.T) {
	for name, lose := range map[string]func(net *network, asker *worker){
		"link":    func(net *network, _ *worker) { net.cutBetween("x", "d0"); net.cutBetween("x", "d1") },
		"client":  func(_ *network, asker *worker) { asker.node.engine.ClientGone(asker.id) },
		"revoked": nil,
	} {
		t.Run(name, func(t *testing.T) {
			net := newNetwork(t, "d0", "d1", "x", "p")
			dst, src := newInstance(t, net, "dec", 8, "d0", "d1"), newInstance(t, net, "pre", 8, "p", "p")
			asker := newClient(t, net.nodes["x"], "asker")
			info := asker.mustLease("dec", 1, 2)
			a, b := src[0].pushAs(info.Ticket, firstTransfer, 1, 3, 4), src[1].pushAs(info.Ticket, firstTransfer, 1, 3, 4)
			src[0].pushAll(a, "")
			require.Nil(t, src[0].transferEnd(a).Error)
			src[1].layer(b, 0)
			dst[1].until("a layer", func() bool { return len(dst[1].granted) > 0 && len(dst[1].layers[dst[1].granted[0].Lease]) > 0 })
			if name == "revoked" {
				require.NoError(t, asker.node.engine.Revoke(asker.id, info.Lease))
			} else {
				lose(net, asker)
			}
			end := src[1].transferEnd(b)
			require.NotNil(t, end.Error)
			want := map[string][]fault.Code{"client": {fault.ClientGone}, "revoked": {fault.LeaseRevoked},
				"link": {fault.PeerLost, fault.LeaseRevoked}}[name] // the loss of one rank's link may be told to the other rank first
			assert.Contains(t, want, code(t, end.Error))
			assert.Contains(t, want, code(t, dst[1].leaseEnd(dst[1].part(info).Lease).Error))
			dst[0].untilFree()
			dst[1].untilFree()
			if name == "link" {
				assert.Equal(t, fault.PeerLost, code(t, asker.leaseEnd(info.Lease).Error))
			}
			require.Eventually(t, func() bool { return asker.node.engine.Stats().Leases == 0 }, patience, time.Millisecond)
		})
	}
}

// TestRetryNeedsAFenceAndAHigherAttempt: under a new lease the same attempt is refused, and a further one while the former is not fenced.
func TestRetryNeedsAFenceAndAHigherAttempt(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "p")
	dst, src := newInstance(t, net, "dec", 8, "d0", "d1"), newInstance(t, net, "pre", 8, "p", "p")
	asker := newClient(t, net.nodes["d1"], "asker")
	one, two := asker.mustLease("dec", 1), asker.mustLease("dec", 2)
	first := src[0].pushAs(one.Ticket, firstTransfer, 1, 3)
	src[0].layer(first, 0)
	dst[0].until("a layer", func() bool { return len(dst[0].layers) > 0 })

	end := src[0].transferEnd(src[0].pushAs(two.Ticket, firstTransfer, 1, 3))
	assert.Equal(t, fault.TicketBound, code(t, end.Error))
	assert.Contains(t, end.Error.Detail, "attempt 1")
	end = src[0].transferEnd(src[0].pushAs(two.Ticket, firstTransfer, 2, 3))
	assert.Equal(t, fault.BlocksBusy, code(t, end.Error), "the former attempt is not fenced")

	require.NoError(t, asker.node.engine.Revoke(asker.id, one.Lease))
	require.NotNil(t, asker.leaseEnd(one.Lease).Error)
	end = src[0].transferEnd(src[0].pushAs(two.Ticket, firstTransfer, 1, 3))
	assert.Equal(t, fault.TicketBound, code(t, end.Error), "a late attempt")
	for _, s := range src {
		id := s.pushAs(two.Ticket, firstTransfer, 2, 3)
		s.pushAll(id, "")
		require.Nil(t, s.transferEnd(id).Error)
	}
	require.Nil(t, asker.leaseEnd(two.Lease).Error)
}

// TestReadLeaseOfAnInstance: two readers own it, each with every rank; a third is refused.
func TestReadLeaseOfAnInstance(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "s0", "s1", "p", "q")
	owner := newInstance(t, net, "own", 8, "s0", "s1")
	readers := [][]*worker{newInstance(t, net, "r0", 8, "p", "q"), newInstance(t, net, "r1", 8, "q", "p"), newInstance(t, net, "r2", 8, "p", "q")}
	for _, w := range owner {
		w.fill(rng)
	}
	asker := newClient(t, net.nodes["s1"], "asker")
	info, err := asker.leaseInstance(wire.LeaseRequest{Instance: "own", Mode: "read", Readers: 2}, 1, 2)
	require.NoError(t, err)
	pull := func(reader int, w *worker) wire.TransferEvent {
		p, err := w.node.engine.Pull(w.id, wire.PullRequest{Cache: w.cache, Ticket: info.Ticket, TimeoutMillis: 60_000,
			TransferIdentity: wire.TransferIdentity{TransferID: fmt.Sprintf("%032x", 7+reader)}}, []uint32{5, 6})
		require.NoError(t, err)
		return w.transferEnd(p.Transfer)
	}
	require.Nil(t, pull(0, readers[0][0]).Error)
	require.Nil(t, pull(1, readers[1][1]).Error)
	for _, w := range readers[2] {
		assert.Equal(t, fault.TicketBound, code(t, pull(2, w).Error))
	}
	require.Nil(t, pull(0, readers[0][1]).Error)
	require.Nil(t, pull(1, readers[1][0]).Error)
	require.Nil(t, asker.leaseEnd(info.Lease).Error)
	assert.Equal(t, owner[1].block(0, 0, 1), readers[1][1].block(0, 0, 5))
	assert.EqualValues(t, 0, owner[0].blockStates().Held)
}

// TestRenewOfAnInstance moves the end of every part.
func TestRenewOfAnInstance(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "p")
	dst, src := newInstance(t, net, "dec", 8, "d0", "d1"), newInstance(t, net, "pre", 8, "p", "p")
	asker := newClient(t, net.nodes["d0"], "asker")
	info, err := asker.leaseInstance(wire.LeaseRequest{Instance: "dec", TTLMillis: 3_600_000}, 1)
	require.NoError(t, err)
	require.NoError(t, asker.node.engine.Renew(asker.id, wire.Renew{Lease: info.Lease, TTLMillis: 1}))
	end := asker.leaseEnd(info.Lease)
	assert.Equal(t, fault.LeaseExpired, code(t, end.Error))
	for _, d := range dst {
		assert.NotNil(t, d.leaseEnd(d.part(info).Lease).Error)
		d.untilFree()
	}
	require.Error(t, asker.node.engine.Renew(asker.id, wire.Renew{Lease: info.Lease, TTLMillis: 1}))

	info, err = asker.leaseInstance(wire.LeaseRequest{Instance: "dec", TTLMillis: 2_000}, 1)
	require.NoError(t, err)
	require.NoError(t, asker.node.engine.Renew(asker.id, wire.Renew{Lease: info.Lease, TTLMillis: 3_600_000}))
	for _, s := range src {
		id := s.pushAs(info.Ticket, secondTransfer, 1, 3)
		s.pushAll(id, "")
		require.Nil(t, s.transferEnd(id).Error)
	}
	require.Nil(t, asker.leaseEnd(info.Lease).Error)
}

// TestDrainEndsAnInstancesLease on the asker's node: nobody has bound it.
func TestDrainEndsAnInstancesLease(t *testing.T) {
	net := newNetwork(t, "d0", "d1", "x")
	dst := newInstance(t, net, "dec", 8, "d0", "d1")
	asker := newClient(t, net.nodes["x"], "asker")
	info := asker.mustLease("dec", 1)
	asker.node.engine.Drain(t.Context())
	assert.Equal(t, fault.Draining, code(t, asker.leaseEnd(info.Lease).Error))
	for _, d := range dst {
		d.untilFree()
	}
}
