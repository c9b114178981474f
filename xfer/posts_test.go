package xfer_test

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// poster posts for a worker and keeps the ends by cookie.
type poster struct {
	w *worker
	g xfer.Poster

	mu   sync.Mutex
	ends map[uint64]wire.Posted
}

func newPoster(w *worker) *poster {
	p := &poster{w: w, ends: map[uint64]wire.Posted{}}
	p.g = w.node.engine.NewPosting(w.id, func(x wire.Posted) {
		p.mu.Lock()
		_, twice := p.ends[x.Cookie]
		p.ends[x.Cookie] = x
		p.mu.Unlock()
		assert.False(w.t, twice, "post %d ended twice", x.Cookie)
		w.note(func() {})
	})
	return p
}

func (p *poster) post(prepared, cookie uint64, timeout time.Duration) {
	p.g.Post(wire.Post{Prepared: prepared, Cookie: cookie, TimeoutNanos: uint64(timeout)})
}

func (p *poster) end(cookie uint64) (x wire.Posted) {
	p.g.Rest() // completions come by themselves
	p.w.until("a post's end", func() (ok bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		x, ok = p.ends[cookie]
		return ok
	})
	return x
}

func (w *worker) prepareRanges(mode, ticket string, list ...wire.ScatterRange) uint64 {
	info, err := w.node.engine.Prepare(w.id, wire.Prepare{Region: w.region, Mode: mode, Ticket: ticket, TimeoutMillis: 60_000}, wire.AppendScatterRanges(nil, list))
	require.NoError(w.t, err)
	return w.bound(info.Transfer)
}

func (w *worker) prepareBlocks(mode, ticket string, blocks ...uint32) uint64 {
	info, err := w.node.engine.Prepare(w.id, wire.Prepare{Cache: w.cache, Mode: mode, Ticket: ticket, TimeoutMillis: 60_000}, wire.AppendU32s(nil, blocks))
	require.NoError(w.t, err)
	return w.bound(info.Transfer)
}

func (w *worker) bound(transfer uint64) uint64 {
	w.until("EVENT_PREPARED", func() bool { _, ok := w.prepared[transfer]; return ok })
	return transfer
}

// TestPreparedPostsMoveTheListEachTime: raw memory, both ways.
func TestPreparedPostsMoveTheListEachTime(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b")
	const size = 3 << 20
	a, b := rawWorker(t, net.nodes["a"], "a", size), rawWorker(t, net.nodes["b"], "b", size)
	for _, mode := range []string{"write", "read"} {
		list := []wire.ScatterRange{{Local: 5, Remote: 100, Len: 2 << 20}, {Local: 1<<20 + 1<<21, Remote: 1<<21 + 200, Len: 4096 - 5}, {Remote: 50, Len: 1}}
		if list[1].Local+list[1].Len > size {
			list[1].Local = size - list[1].Len
		}
		lease := b.advertise(mode, 0, time.Minute)
		prepared := a.prepareRanges(mode, lease.Ticket, list...)
		assert.Equal(t, uint64(2<<20+4096-5+1), a.prepared[prepared].Bytes)
		assert.Equal(t, "tcp", a.prepared[prepared].Provider)
		p := newPoster(a)
		for round := range uint64(5) {
			a.fill(rng)
			b.fill(rng)
			p.post(prepared, round, time.Minute)
			x := p.end(round)
			require.Zero(t, x.Code)
			assert.Equal(t, a.prepared[prepared].Bytes, x.Bytes)
			for _, r := range list {
				require.True(t, bytes.Equal(a.mem.bytes[r.Local:r.Local+r.Len], b.mem.bytes[r.Remote:r.Remote+r.Len]), "%s round %d", mode, round)
			}
		}
		for i := range uint64(20) { // many at a time
			p.post(prepared, 100+i, time.Minute)
		}
		for i := range uint64(20) {
			require.Zero(t, p.end(100+i).Code)
		}
		a.node.engine.PushFinish(a.id, prepared, []byte("bye"))
		end := a.transferEnd(prepared)
		require.Nil(t, end.Error)
		assert.Equal(t, 25*a.prepared[prepared].Bytes, end.Bytes)
		assert.True(t, end.Released)
		b.until("the holder's end", func() bool { return len(b.holders) > 0 && b.holders[len(b.holders)-1].Lease == lease.Lease })
		assert.Equal(t, "bye", string(b.holderSay[len(b.holderSay)-1]))
		p.post(prepared, 999, time.Minute)
		assert.Equal(t, uint32(fault.Closed), p.end(999).Code)
	}
}

// TestPreparedBlocksCommit: a write lease is written several times and COMMITTED once, by the finish; the same for a read.
func TestPreparedBlocksCommit(t *testing.T) {
	rng := testseed.New(t)
	net := newNetwork(t, "a", "b")
	l := small
	a, b := newWorker(t, net.nodes["a"], "a", l, 64), newWorker(t, net.nodes["b"], "b", l, 64)
	src, dst := []uint32{3, 9, 1, 40}, []uint32{8, 2, 63, 7}
	lease := b.lease(time.Minute, dst...)
	prepared := a.prepareBlocks("write", lease.Ticket, src...)
	p := newPoster(a)
	for round := range uint64(3) {
		a.fill(rng)
		p.post(prepared, round, time.Minute)
		require.Zero(t, p.end(round).Code)
		require.Equal(t, a.blocksOf(src), b.blocksOf(dst))
	}
	assert.Equal(t, uint32(4), b.blockStates().Leased, "still leased")
	a.node.engine.PushFinish(a.id, prepared, nil)
	require.Nil(t, a.transferEnd(prepared).Error)
	require.Nil(t, b.leaseEnd(lease.Lease).Error)
	assert.Equal(t, uint32(4), b.blockStates().Committed)

	offer := b.offer(1, time.Minute, dst...)
	into := []uint32{20, 21, 30, 31}
	prepared = a.prepareBlocks("read", offer.Ticket, into...)
	p.post(prepared, 50, time.Minute)
	require.Zero(t, p.end(50).Code)
	require.Equal(t, a.blocksOf(into), b.blocksOf(dst))
	a.node.engine.PushFinish(a.id, prepared, nil)
	require.Nil(t, a.transferEnd(prepared).Error)
	assert.Equal(t, uint32(4), a.blockStates().Committed)
}

// TestPreparedEnds: whatever ends a prepared transfer, its posts end typed and nothing lands afterwards.
func TestPreparedEnds(t *testing.T) {
	rng := testseed.New(t)
	const size = 8 << 20
	for _, c := range []struct {
		name string
		end  func(net *network, a, b *worker, lease, prepared uint64)
		code fault.Code
	}{
		{"revoked", func(_ *network, _, b *worker, lease, _ uint64) { assert.NoError(t, b.node.engine.Revoke(b.id, lease)) }, fault.LeaseRevoked},
		{"cancelled", func(_ *network, a, _ *worker, _, prepared uint64) { a.node.engine.CancelTransfer(a.id, prepared) }, fault.Cancelled},
		{"link lost", func(net *network, _, _ *worker, _, _ uint64) { net.cut() }, fault.PeerLost},
		{"client gone", func(_ *network, a, _ *worker, _, _ uint64) { a.node.engine.ClientGone(a.id) }, fault.ClientGone},
	} {
		for _, mode := range []string{"write", "read"} {
			t.Run(c.name+" "+mode, func(t *testing.T) {
				net := newNetwork(t, "a", "b")
				a, b := rawWorker(t, net.nodes["a"], "a", size), rawWorker(t, net.nodes["b"], "b", size)
				a.fill(rng)
				lease := b.advertise(mode, 0, time.Minute)
				prepared := a.prepareRanges(mode, lease.Ticket, wire.ScatterRange{Len: size})
				p := newPoster(a)
				p.post(prepared, 0, time.Minute)
				require.Zero(t, p.end(0).Code)
				for i := range uint64(8) {
					p.post(prepared, 1+i, time.Minute)
				}
				c.end(net, a, b, lease.Lease, prepared)
				for i := range uint64(8) {
					if x := p.end(1 + i); x.Code != 0 {
						assert.Equal(t, c.code, fault.Code(x.Code))
					}
				}
				end := a.transferEnd(prepared)
				require.NotNil(t, end.Error)
				assert.Equal(t, c.code, end.Error.Code)
				p.post(prepared, 100, time.Minute)
				assert.NotZero(t, p.end(100).Code)
				if c.name == "revoked" {
					b.leaseEnd(lease.Lease)
					copy(b.mem.bytes, bytes.Repeat([]byte{0xA5}, size))
					time.Sleep(20 * time.Millisecond)
					assert.True(t, bytes.Equal(bytes.Repeat([]byte{0xA5}, size), b.mem.bytes), "a late byte")
				}
			})
		}
	}
}

// TestPostDeadline: a post that is late ends its list.
func TestPostDeadline(t *testing.T) {
	net := newNetwork(t, "a", "b")
	const size = 64 << 20
	a, b := rawWorker(t, net.nodes["a"], "a", size), rawWorker(t, net.nodes["b"], "b", size)
	lease := b.advertise("write", 0, time.Minute)
	prepared := a.prepareRanges("write", lease.Ticket, wire.ScatterRange{Len: size})
	p := newPoster(a)
	p.post(prepared, 1, time.Nanosecond)
	x := p.end(1)
	assert.Equal(t, fault.DeadlineExceeded, fault.Code(x.Code))
	assert.Equal(t, fault.DeadlineExceeded, a.transferEnd(prepared).Error.Code)
	p.post(prepared, 2, 0)
	assert.Equal(t, fault.InvalidArgument, fault.Code(p.end(2).Code))
	p.post(12345, 3, time.Second)
	assert.Equal(t, fault.NotFound, fault.Code(p.end(3).Code))
}

// TestDrainEndsIdleLists: a prepared transfer that nobody uses holds no drain up.
func TestDrainEndsIdleLists(t *testing.T) {
	net := newNetwork(t, "a", "b")
	a, b := rawWorker(t, net.nodes["a"], "a", 4096), rawWorker(t, net.nodes["b"], "b", 4096)
	lease := b.advertise("write", 0, time.Minute)
	prepared := a.prepareRanges("write", lease.Ticket, wire.ScatterRange{Len: 4096})
	a.node.engine.Drain(t.Context())
	assert.Equal(t, fault.Draining, a.transferEnd(prepared).Error.Code)
}

// TestFinishWithoutAPost: there is nothing that could be committed.
func TestFinishWithoutAPost(t *testing.T) {
	net := newNetwork(t, "a", "b")
	a, b := rawWorker(t, net.nodes["a"], "a", 4096), rawWorker(t, net.nodes["b"], "b", 4096)
	lease := b.advertise("write", 0, time.Minute)
	prepared := a.prepareRanges("write", lease.Ticket, wire.ScatterRange{Len: 4096})
	a.node.engine.PushFinish(a.id, prepared, nil)
	assert.Equal(t, fault.Cancelled, a.transferEnd(prepared).Error.Code)
	_, err := a.node.engine.Prepare(a.id, wire.Prepare{Region: a.region, Mode: "write", Ticket: lease.Ticket, TimeoutMillis: 1000}, nil)
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Equal(t, "ranges", fault.From("", err).Field)
}
