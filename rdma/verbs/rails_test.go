package verbs

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// A transfer that loses one of its rails in the middle finishes on the other, and what the lost rail's wire still carries lands
// nowhere when it is delivered later: not in the block while its owner uses it, not after it was fenced.
func TestRailLostInMidTransfer(t *testing.T) {
	for name, opt := range map[string]Options{"windows": {}, "without windows": {NoWindows: true}} {
		for _, c := range []struct {
			name string
			lose func(p *pair)
			back func(p *pair)
		}{
			{"port down", func(p *pair) { p.ha.Adapter("soft0").SetPortActive(1, false) }, func(p *pair) { p.ha.Adapter("soft0").SetPortActive(1, true) }},
			{"no answers", func(*pair) {}, func(*pair) {}},
			{"queue pairs fail", func(p *pair) {
				p.ini.mu.Lock()
				var numbers []uint32
				for _, l := range p.ini.lanes {
					if l.rail.near.index() == 0 {
						numbers = append(numbers, l.qpn)
					}
				}
				p.ini.mu.Unlock()
				for _, n := range numbers {
					p.ha.Adapter("soft0").FailQP(n)
				}
			}, func(*pair) {}},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				const size = 4 << 20
				p := newPair(t, size, 2, quick(opt))
				key := p.grant(t, rdma.AccessWrite, 0, size)
				pattern(p.src, 1)
				p.there(0).Hold()
				p.post(t, p.write(key, 1, rdma.Range{Len: size}))
				held(t, p.there(0), 1)
				c.lose(p)
				e := p.next(t, p.a, rdma.EventCompletion)
				require.Equal(t, rdma.Event{Kind: rdma.EventCompletion, Session: 2, Op: 1, Bytes: size, Took: e.Took}, e)
				e = p.next(t, p.b, rdma.EventArrival)
				require.EqualValues(t, size, e.Bytes)
				require.EqualValues(t, 1001, e.Tag)
				require.Equal(t, bytes.Clone(p.src), bytes.Clone(p.dst))
				c.back(p)
				require.NoError(t, p.tgt.Fence(key))
				pattern(p.dst, 2)
				want := bytes.Clone(p.dst)
				deliver(t, p.there(0))
				require.Equal(t, want, bytes.Clone(p.dst), "the old rail's packets landed")

				// The rail comes back by itself.
				eventually(t, "lanes of both rails are up", func() bool {
					p.ini.mu.Lock()
					defer p.ini.mu.Unlock()
					return p.ini.ways() == 2
				})
				require.NoError(t, p.a.Close())
				require.NoError(t, p.b.Close())
			})
		}
	}
}

func (r *rail) index() int { return r.dev.index }

// Rails that neither move nor give up what they have: a transfer on one of them finishes on the other, and no late packet lands.
func TestStalledRail(t *testing.T) {
	const size = 4 << 20
	p := newPair(t, size, 2, Options{Timeout: 31, Drain: 5 * time.Millisecond, stall: 50 * time.Millisecond})
	key := p.grant(t, rdma.AccessWrite, 0, size)
	pattern(p.src, 1)
	p.there(0).Hold()
	p.post(t, p.write(key, 1, rdma.Range{Len: size}))
	held(t, p.there(0), 1)
	require.Zero(t, p.next(t, p.a, rdma.EventCompletion).Status)
	p.next(t, p.b, rdma.EventArrival)
	require.Equal(t, bytes.Clone(p.src), bytes.Clone(p.dst))
	require.NoError(t, p.tgt.Fence(key))
	pattern(p.dst, 2)
	want := bytes.Clone(p.dst)
	deliver(t, p.there(0))
	require.Equal(t, want, bytes.Clone(p.dst), "the stalled rail's packets landed")
	require.NoError(t, p.a.Close())
	require.NoError(t, p.b.Close())
}

// An operation that lost its window before it is cancelled is made to end too, on a rail that neither moves it nor gives it up: a port
// that is paused does neither.
func TestCancelOfWhatLostItsWindow(t *testing.T) {
	const size = 256 << 10
	p := newPair(t, size, 1, Options{Timeout: 31, Drain: 5 * time.Millisecond})
	key := p.grant(t, rdma.AccessWrite, 0, size)
	p.there(0).Hold()
	p.post(t, p.write(key, 1, rdma.Range{Len: size}))
	held(t, p.there(0), 1)
	require.NoError(t, p.tgt.Fence(key))
	eventually(t, "the initiator hears of the fence", func() bool {
		p.ini.mu.Lock()
		defer p.ini.mu.Unlock()
		return p.ini.windows[key].revoked
	})
	p.ini.Cancel(1)
	e := p.next(t, p.a, rdma.EventCompletion)
	require.Equal(t, fault.StaleKey, e.Status)
	require.True(t, e.Wrote)
	require.NoError(t, p.a.Close())
	require.NoError(t, p.b.Close())
}

// A target that is stopped takes no records. The initiator runs out of credits and waits; no lane breaks, and everything arrives in
// the end, once.
func TestTargetThatIsStopped(t *testing.T) {
	const size, ops = 1 << 20, 2000
	p := newPair(t, size, 1, Options{LanesPerRail: 1, MaxInFlight: ops})
	key := p.grant(t, rdma.AccessWrite, 0, size)
	p.post(t, p.write(key, 0, rdma.Range{Len: 1}))
	require.Zero(t, p.next(t, p.a, rdma.EventCompletion).Status)
	p.next(t, p.b, rdma.EventArrival)
	pattern(p.src, 1)

	p.tgt.mu.Lock() // its poller and its reader stand still
	goOn := sync.OnceFunc(p.tgt.mu.Unlock)
	defer goOn()
	at := uint64(0)
	var all []rdma.Op
	for id := uint64(1); id < ops; id++ {
		// Many pieces that touch nowhere, so that operations go on from one batch to the next.
		var rs []rdma.Range
		for range 1 + id%40 {
			rs = append(rs, rdma.Range{Local: at % size, Remote: at % size, Len: 8})
			at += 16
		}
		all = append(all, p.write(key, id, rs...))
	}
	p.post(t, all...)
	eventually(t, "the credits are used up", func() bool {
		p.ini.mu.Lock()
		defer p.ini.mu.Unlock()
		l := p.ini.lanes[0]
		require.LessOrEqual(t, l.sent-l.taken, l.receives)
		require.LessOrEqual(t, l.sent-l.sendsDone, uint64(recvDepth))
		return l.sent-l.taken == l.receives && l.done == l.posted
	})
	goOn()
	seen := map[uint64]bool{}
	for range ops - 1 {
		e := p.next(t, p.a, rdma.EventCompletion)
		require.Zero(t, e.Status)
		e = p.next(t, p.b, rdma.EventArrival)
		require.False(t, seen[e.Tag])
		seen[e.Tag] = true
	}
	require.Equal(t, []uint32{1}, p.gens())
	for k := uint64(0); k < min(at, size); k += 16 {
		require.Equal(t, p.src[k:k+8], p.dst[k:k+8])
	}
}

// An operation that the target's device refuses, though its window is there, ends with PermissionDenied after a few tries; what
// travels with it does not suffer for it.
func TestRefusedByTheDevice(t *testing.T) {
	p := newPair(t, 64<<10, 1, quick(Options{NoWindows: true, LanesPerRail: 1}))
	good := p.grant(t, rdma.AccessWrite, 0, 64<<10)
	other := mapped(t, 4096)
	r := register(t, p.b.Provider, other, "other")
	bounds, err := rdma.NewSpans(4096, rdma.Span{Len: 4096})
	require.NoError(t, err)
	bad, err := p.tgt.Grant(rdma.Window{Region: r, Access: rdma.AccessWrite, Bounds: bounds})
	require.NoError(t, err)
	require.NoError(t, r.(*region).pinned.mrs[0].Close()) // behind the provider's back
	p.post(t, p.write(good, 1, rdma.Range{Len: 4096}), p.write(bad, 2, rdma.Range{Len: 4096}), p.write(good, 3, rdma.Range{Len: 4096}))
	got := map[uint64]fault.Code{}
	for range 3 {
		e := p.next(t, p.a, rdma.EventCompletion)
		got[e.Op] = e.Status
	}
	require.Equal(t, map[uint64]fault.Code{1: 0, 2: fault.PermissionDenied, 3: 0}, got)
}

// Memory that does not fit into the limit of locked memory, and a device without room for queue pairs, are typed errors.
func TestLimitsOfDevices(t *testing.T) {
	p := unconnected(t, 4096, 1, Options{})
	a := p.ha.Adapter("soft0")
	full := fault.New(fault.ResourceExhausted, "ibv_reg_mr", "RLIMIT_MEMLOCK")
	a.Refuse(func(call string) error {
		if call == "Register" {
			return full
		}
		return nil
	})
	m := rdma.Memory{Kind: rdma.MemoryHost, Base: p.srcR.Memory().Base, Len: 8, Name: "more"}
	_, err := p.a.Register(m)
	requireCode(t, fault.ResourceExhausted, err)
	require.Contains(t, err.Error(), "RLIMIT_MEMLOCK")
	a.Refuse(refuse("NewQP"))
	_, par, err := p.b.Accept(1)
	require.NoError(t, err)
	p.a.devices[0].mu.Lock()
	for _, qp := range p.a.devices[0].spares {
		defer qp.Destroy()
	}
	p.a.devices[0].spares = nil
	p.a.devices[0].mu.Unlock()
	_, err = p.a.Connect(t.Context(), 2, p.relay.Addr(), par)
	require.ErrorContains(t, err, errStuck.Error())
	a.Refuse(nil)
	_, par, err = p.b.Accept(2)
	require.NoError(t, err)
	_, err = p.a.Connect(t.Context(), 3, p.relay.Addr(), par)
	require.NoError(t, err)

	p.ha.Adapter("soft0").ChangePort(1, func(i *nic.PortInfo) { i.GIDs = nil })
	_, par, err = p.b.Accept(3)
	require.NoError(t, err)
	_, err = p.a.Connect(t.Context(), 4, p.relay.Addr(), par)
	requireCode(t, fault.PeerUnreachable, err)
}
