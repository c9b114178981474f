package shm

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// An initiator is stopped while it reads. Its target takes the memory back all the same, in bounded time, whichever way it
// does; what the initiator goes on with is void.
func TestAStoppedReaderHoldsNoFenceUp(t *testing.T) {
	for name, take := range map[string]func(t *testing.T, p *pair, k rdma.Key){
		"fence":    func(t *testing.T, p *pair, k rdma.Key) { require.NoError(t, p.tgt.Fence(k)) },
		"region":   func(t *testing.T, p *pair, k rdma.Key) { require.NoError(t, p.dstR.Close()) },
		"session":  func(t *testing.T, p *pair, k rdma.Key) { require.NoError(t, p.tgt.Close()) },
		"provider": func(t *testing.T, p *pair, k rdma.Key) { require.NoError(t, p.b.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 1<<20, Options{}, Options{Grace: time.Millisecond})
			k := p.grant(t, rdma.AccessRead, 0)
			w := p.tgt.window(k)
			inside := stopped(t, &p.ini.session, w.slot, w.word)
			within(t, "taking the memory back", func() { take(t, p, k) })
			if name == "fence" || name == "region" {
				assert.True(t, p.tgt.stopped.Load(), "it was waited for, and noted")
				assert.Equal(t, fault.StaleKey, inside.leave(), "what was read since is void")
				assert.Equal(t, fault.StaleKey, inside.enter())
				next := p.grantAgain(t)
				assert.Equal(t, fault.Code(0), p.do(t, read(next, 1, p.srcR, rdma.Range{Len: 4096})).Status, "the session goes on")
			}
		})
	}
}

// grantAgain opens a READ window on fresh memory.
func (p *pair) grantAgain(t testing.TB) rdma.Key {
	p.dst = fabrictest.Alloc(t, 4096, 0)
	p.dstR = register(t, p.b, p.dst.Host("next"))
	return p.grant(t, rdma.AccessRead, 0)
}

// A target is stopped while it reads the sources of many WRITEs. Cancelling them waits one grace, not one for each.
func TestAStoppedTargetHoldsNoCancelUp(t *testing.T) {
	const grace, n = 3 * time.Second, 64 // together far more than the tests' patience
	for name, take := range map[string]func(p *pair, ids []uint64){
		"cancel": func(p *pair, ids []uint64) { p.ini.Cancel(ids...) },
		"close":  func(p *pair, ids []uint64) { _ = p.ini.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 1<<20, Options{Grace: grace}, Options{})
			k := p.grant(t, rdma.AccessWrite, 0)
			p.tgt.mu.Lock() // it takes nothing and says nothing
			locked := true
			defer func() {
				if locked {
					p.tgt.mu.Unlock()
				}
			}()
			var ops []rdma.Op
			var ids []uint64
			for id := uint64(1); id <= n; id++ {
				ops, ids = append(ops, write(k, id, p.srcR, rdma.Range{Len: 4096})), append(ids, id, id)
			}
			p.post(t, ops...)
			var inside []*permit
			for id := uint64(1); id <= n; id++ {
				o := p.ini.byID[id]
				x := &permit{slot: &p.tgt.peer.slots[o.slot], in: &p.tgt.page.in[o.slot], word: o.word}
				require.Zero(t, x.enter())
				inside = append(inside, x)
			}
			within(t, name, func() { take(p, ids) })
			for range n {
				ev := p.a.next(t, rdma.EventCompletion)
				assert.Contains(t, []fault.Code{fault.Cancelled, fault.Closed}, ev.Status)
			}
			for _, x := range inside {
				assert.NotZero(t, x.leave(), "what was read is void")
			}
			p.tgt.mu.Unlock()
			locked = false
		})
	}
}

// The deadline of a READ window ends it for whoever is inside: by the clock that both processes see and, where that says
// nothing, by the target's timer.
func TestDeadlineVoidsAReader(t *testing.T) {
	for name, mono := range map[string]func(rdma.Instant) int64{"clock": nil, "timer": func(rdma.Instant) int64 { return 0 }} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 1<<20, Options{}, Options{Monotonic: mono})
			now := p.b.opt.Clock.Now()
			k := p.grant(t, rdma.AccessRead, now+rdma.Instant(time.Hour))
			w := p.tgt.window(k)
			inside := stopped(t, &p.ini.session, w.slot, w.word)
			require.NoError(t, p.tgt.Extend(k, p.b.opt.Clock.Now()+rdma.Instant(20*time.Millisecond)))
			eventually(t, "the deadline", func() bool { return inside.check() == fault.LeaseExpired })
			assert.Equal(t, fault.LeaseExpired, inside.leave())
			assert.Equal(t, fault.LeaseExpired, p.do(t, read(k, 1, p.srcR, rdma.Range{Len: 1})).Status)
			require.NoError(t, p.tgt.Extend(k, 0))
			assert.Equal(t, fault.Code(0), p.do(t, read(k, 2, p.srcR, rdma.Range{Len: 1})).Status, "a later deadline opens it again")
			require.NoError(t, p.tgt.Fence(k))
			assert.Equal(t, fault.StaleKey, inside.check())
		})
	}
}

// A slot serves one window after the other; who holds on to an old permission is not let into the next.
func TestASlotsNextUseIsAnother(t *testing.T) {
	p := newPair(t, 1<<20, Options{}, Options{})
	k := p.grant(t, rdma.AccessRead, 0)
	w := p.tgt.window(k)
	inside := stopped(t, &p.ini.session, w.slot, w.word)
	require.Zero(t, inside.leave())
	require.NoError(t, p.tgt.Fence(k))
	for range 2 * windowSlots {
		k = p.grant(t, rdma.AccessRead, 0)
		if p.tgt.window(k).slot == w.slot {
			assert.Equal(t, fault.StaleKey, inside.enter())
			assert.NotEqual(t, w.word, p.tgt.window(k).word)
			return
		}
		require.NoError(t, p.tgt.Fence(k))
	}
	t.Fatal("the slot was never used again")
}

func TestReadWindowsAreBounded(t *testing.T) {
	p := newPair(t, 4096, Options{}, Options{})
	var keys []rdma.Key
	for range windowSlots {
		keys = append(keys, p.grant(t, rdma.AccessRead, 0))
	}
	w := rdma.Window{Region: p.dstR, Access: rdma.AccessRead, Bounds: rdma.Spans{{Len: 4096}}}
	_, err := p.tgt.Grant(w)
	requireCode(t, fault.ResourceExhausted, err)
	p.grant(t, rdma.AccessWrite, 0) // these need none
	require.NoError(t, p.tgt.Fence(keys[7]))
	_, err = p.tgt.Grant(w)
	require.NoError(t, err)
}

// Windows for reading that were granted before the initiator came are served.
func TestGrantBeforeConnect(t *testing.T) {
	a, b := newNode(t, Options{}), newNode(t, Options{})
	mem := fabrictest.Alloc(t, 4096, 0)
	fabrictest.Fill(mem.Bytes(), fabrictest.ClassSource, 1)
	tgt, par, err := b.Accept(7)
	require.NoError(t, err)
	w := rdma.Window{Region: register(t, b, mem.Host("m")), Access: rdma.AccessRead, Bounds: rdma.Spans{{Len: 4096}}}
	k, err := tgt.Grant(w)
	require.NoError(t, err)
	gone, err := tgt.Grant(w)
	require.NoError(t, err)
	require.NoError(t, tgt.Fence(gone))
	ini, err := a.Connect(t.Context(), 9, "", par)
	require.NoError(t, err)
	into := fabrictest.Alloc(t, 4096, 0)
	local := register(t, a, into.Host("into"))
	p := &pair{a: a, b: b, ini: ini.(*initiator)}
	assert.Equal(t, fault.Code(0), p.do(t, read(k, 1, local, rdma.Range{Len: 4096})).Status)
	assert.Empty(t, fabrictest.Diff(mem.Bytes(), into.Bytes()))
	assert.Equal(t, fault.StaleKey, p.do(t, read(gone, 2, local, rdma.Range{Len: 4096})).Status)
}
