package fabrictest_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// The reference provider is the smallest one that keeps the contract: two nodes in one process, worker goroutines in
// the place of lanes, a buffer of each in the place of the wire. It copies slowly, in steps, so that operations really
// are in flight when a test interferes. A defect, named by a string, breaks one promise of it.

var refCaps = rdma.Caps{
	Kinds: []rdma.MemoryKind{rdma.MemoryHost}, Write: true, Read: true, ChecksDeadline: true, ChecksBounds: true,
	MaxRanges: 8192, MaxOpBytes: 64 << 20, MaxInFlight: 256, MaxInFlightLen: 8 << 20,
}

// fabric joins the nodes of one test: what Accept returned leads Connect to the target.
type fabric struct {
	mu      sync.Mutex
	targets map[string]*refTarget
	ids     atomic.Uint64
}

type refProvider struct {
	name   string
	fab    *fabric
	clock  rdma.Clock
	defect string

	mu         sync.Mutex // regions, sessions, closed
	closed     bool
	initiators []*refInitiator
	targets    []*refTarget

	evMu   sync.Mutex
	events []rdma.Event
	over   bool // closed, and everything has been said
	ready  chan struct{}

	take     func([]rdma.Event) // nil: events are polled for
	bringing bool
}

func newRefProvider(name string, fab *fabric, clock rdma.Clock, defect string) *refProvider {
	return &refProvider{name: name, fab: fab, clock: clock, defect: defect, ready: make(chan struct{}, 1)}
}

func (p *refProvider) Name() string    { return "reference" }
func (p *refProvider) Caps() rdma.Caps { return refCaps }

func (p *refProvider) push(ev rdma.Event) {
	p.evMu.Lock()
	p.events = append(p.events, ev)
	bring := p.take != nil && (!p.bringing || p.defect == "two-takes")
	p.bringing = p.bringing || bring
	p.evMu.Unlock()
	if bring {
		go p.bring()
		return
	}
	if p.defect == "lost-wakeup" && ev.Kind == rdma.EventCompletion {
		return
	}
	select {
	case p.ready <- struct{}{}:
	default:
	}
}

// Deliver has events brought by one goroutine at a time.
func (p *refProvider) Deliver(take func([]rdma.Event)) { p.take = take }

func (p *refProvider) bring() {
	for {
		p.evMu.Lock()
		evs := p.events
		p.events = nil
		p.bringing = len(evs) > 0
		p.evMu.Unlock()
		if len(evs) == 0 {
			return
		}
		if p.defect == "take-under-lock" {
			p.mu.Lock()
		}
		p.take(evs)
		if p.defect == "take-under-lock" {
			p.mu.Unlock()
		}
	}
}

func (p *refProvider) Poll(dst []rdma.Event) int {
	p.evMu.Lock()
	defer p.evMu.Unlock()
	if p.take != nil {
		return 0
	}
	n := copy(dst, p.events)
	p.events = p.events[n:]
	return n
}

func (p *refProvider) Wait(ctx context.Context) error {
	for {
		p.evMu.Lock()
		due, over := len(p.events) > 0 && p.take == nil, p.over
		p.evMu.Unlock()
		if due && p.defect != "lost-wakeup" {
			return nil
		}
		if over && !due {
			return fault.New(fault.Closed, "wait", "the provider is closed")
		}
		select {
		case <-p.ready:
			if due {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

type refRegion struct {
	p      *refProvider
	mem    rdma.Memory
	bytes  []byte
	closed bool // under p.mu
}

func (p *refProvider) Register(m rdma.Memory) (rdma.Region, error) {
	if m.Kind != rdma.MemoryHost {
		return nil, fault.New(fault.NotSupported, "register", "memory kind %d", m.Kind)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fault.New(fault.Closed, "register", "the provider is closed")
	}
	return &refRegion{p: p, mem: m, bytes: unsafe.Slice((*byte)(m.Base), m.Len)}, nil
}

func (r *refRegion) Memory() rdma.Memory { return r.mem }

func (r *refRegion) Close() error {
	r.p.mu.Lock()
	r.closed = true
	inits, targets := r.p.initiators, r.p.targets
	r.p.mu.Unlock()
	for _, t := range targets {
		if r.p.defect != "region-close-leaves-windows" {
			t.fenceWhere(func(w *refWindow) bool { return w.region == r })
		}
	}
	for _, i := range inits {
		i.endWhere(fault.Cancelled, func(o *refOp) bool { return o.local == r })
	}
	return nil
}

func (p *refProvider) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, fault.New(fault.Closed, "accept", "the provider is closed")
	}
	t := &refTarget{p: p, id: id, windows: map[rdma.Key]*refWindow{}}
	p.targets = append(p.targets, t)
	params := fmt.Sprintf("%s/%d", p.name, id)
	p.fab.mu.Lock()
	p.fab.targets[params] = t
	p.fab.mu.Unlock()
	return t, []byte(params), nil
}

func (p *refProvider) Connect(_ context.Context, id rdma.SessionID, _ string, params []byte) (rdma.Initiator, error) {
	p.fab.mu.Lock()
	t := p.fab.targets[string(params)]
	p.fab.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	if t == nil || p.closed {
		return nil, fault.New(fault.PeerUnreachable, "connect", "no such session")
	}
	i := &refInitiator{p: p, id: id, pending: map[uint64]*refOp{}}
	p.initiators = append(p.initiators, i)
	l := &link{i: i, t: t}
	l.cond = sync.NewCond(&l.mu)
	i.link = l
	t.mu.Lock()
	t.link = l
	t.mu.Unlock()
	for range 2 {
		go l.work()
	}
	if p.defect == "leak-fd" {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		leaked = append(leaked, f)
	}
	return i, nil
}

// leaked keeps files from being closed by the garbage collector.
var leaked []*os.File

func (p *refProvider) Close() error {
	p.mu.Lock()
	p.closed = true
	inits, targets := p.initiators, p.targets
	p.mu.Unlock()
	for _, i := range inits {
		_ = i.Close()
	}
	for _, t := range targets {
		_ = t.Close()
	}
	p.evMu.Lock()
	p.over = true
	p.evMu.Unlock()
	select {
	case p.ready <- struct{}{}:
	default:
	}
	return nil
}

// slowCopy is a system call or a DMA: it takes its time, now and then much of it, and cannot be called back.
func slowCopy(dst, src []byte) {
	const steps = 4
	slow := len(src) >= 4096 && copies.Add(1)%16 == 0
	for k := range steps {
		if slow && k == steps/2 {
			time.Sleep(50 * time.Microsecond)
		}
		from, to := k*len(src)/steps, (k+1)*len(src)/steps
		copy(dst[from:to], src[from:to])
		runtime.Gosched()
	}
}

var copies atomic.Uint64

func refHarness(defect string) fabrictest.Harness {
	h := fabrictest.Harness{New: func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
		fab := &fabric{targets: map[string]*refTarget{}}
		a, b := newRefProvider("a", fab, clock, defect), newRefProvider("b", fab, clock, defect)
		connect := func(from, to *refProvider) func(t testing.TB) fabrictest.Session {
			return func(t testing.TB) fabrictest.Session {
				s := fabrictest.Session{
					InitiatorID: rdma.SessionID(fab.ids.Add(1)), TargetID: rdma.SessionID(fab.ids.Add(1))}
				target, params, err := to.Accept(s.TargetID)
				require.NoError(t, err)
				initiator, err := from.Connect(t.Context(), s.InitiatorID, "", params)
				require.NoError(t, err)
				s.Initiator, s.Target = initiator, target
				return s
			}
		}
		return fabrictest.Pair{
			A: a, B: b, Connect: connect(a, b), ConnectBack: connect(b, a),
			Cut:   func(s fabrictest.Session) { s.Initiator.(*refInitiator).link.cut() },
			Stall: func(s fabrictest.Session) func() { return s.Initiator.(*refInitiator).link.stall() },
		}
	}}
	if defect != "" {
		h.Bound = 1500 * time.Millisecond // a defect that makes the suite wait is to be found soon
	}
	return h
}
