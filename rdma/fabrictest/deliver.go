package fabrictest

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Way is how a node's events come to the suite.
type Way uint8

const (
	// Polled: by Provider.Poll and Wait. Every provider has it.
	Polled Way = iota
	// Delivered: by rdma.Deliverer.
	Delivered
	// Attached: by rdma.Deliverer, where each session has a goroutine that attaches to its initiator, makes progress for a while,
	// detaches, leaves it alone for a while and attaches again.
	Attached
)

func (w Way) String() string { return [...]string{"Polled", "Delivered", "Attached"}[w] }

// offers says whether the harness's providers have a way.
func (h *Harness) offers(t *testing.T, w Way) bool {
	pair := h.New(t, NewClock())
	defer func() {
		for _, p := range []rdma.Provider{pair.A, pair.B} {
			if err := p.Close(); err != nil {
				t.Errorf("Provider.Close: %v", err)
			}
		}
	}()
	if _, ok := pair.A.(rdma.Deliverer); !ok {
		return false
	}
	_, ok := pair.Connect(t).Initiator.(rdma.Progressor)
	return ok || w == Delivered
}

// receiver is who takes a node's events from Deliver.
type receiver struct {
	n  *node
	mu sync.Mutex
	in map[rdma.SessionID]bool // take runs with events of it
	// after is called with events that are booked, with no lock held: it may call the provider.
	after atomic.Pointer[func(evs []rdma.Event)]
}

func (r *receiver) take(evs []rdma.Event) {
	n := r.n
	r.mu.Lock()
	var mine []rdma.SessionID
	for k := range evs {
		s := evs[k].Session
		if slices.Contains(mine, s) {
			continue
		}
		if r.in[s] {
			n.locked(func() { n.breach("events of session %d were delivered by two goroutines at a time", s) })
		}
		r.in[s] = true
		mine = append(mine, s)
	}
	r.mu.Unlock()
	n.take(evs)
	if f := r.after.Load(); f != nil {
		(*f)(evs)
	}
	runtime.Gosched()
	r.mu.Lock()
	for _, s := range mine {
		delete(r.in, s)
	}
	r.mu.Unlock()
}

// watch is the pump of a node whose events are delivered: Poll must give nothing, and Wait must end with the provider.
func (n *node) watch(ctx context.Context) {
	defer close(n.gone)
	err := n.p.Wait(ctx)
	if k := n.p.Poll(make([]rdma.Event, 1)); k > 0 {
		n.locked(func() { n.breach("Poll gave events that were to be delivered") })
	}
	switch {
	case err != nil && ctx.Err() != nil:
	case fault.CodeOf(err) == fault.Closed:
		n.locked(func() { n.closed = true; n.wake() })
	default:
		n.e.errorf("node %s: Provider.Wait beside Deliver ended with %v", n.name, err)
	}
}

// attach drives a session's initiator until the test ends, where it can be driven.
func (e *env) attach(s Session) {
	if e.h.way != Attached {
		return
	}
	p := s.Initiator.(rdma.Progressor)
	rng := rand.New(rand.NewPCG(e.seed, e.ids.Add(1)))
	e.drivers.Go(func() {
		for {
			p.Attach()
			for range 1 + rng.IntN(400) {
				if p.Progress() == 0 {
					runtime.Gosched()
				}
			}
			p.Detach()
			tm := time.NewTimer(time.Duration(rng.IntN(1000)) * time.Microsecond)
			select {
			case <-e.stopDrivers:
				tm.Stop()
				return
			case <-tm.C:
			}
		}
	})
}

// testCallsFromTake: take may call what the user calls: a chain of operations, each posted by the completion of the one before;
// Grant; Cancel of what is pending; at last Close of both sides.
func testCallsFromTake(e *env) {
	const links, size = 300, 4096
	s := e.connect()
	kinds := e.kinds()
	local, remote := s.sides(rdma.OpWrite, links*size, links*size, 0)
	keys := map[rdma.OpKind]rdma.Key{}
	for _, k := range kinds {
		keys[k] = s.open(remote, k)
	}
	var posted atomic.Int64
	chain := make(chan struct{})
	post := func(n int64) {
		kind := kinds[0] // what is written comes back unchanged
		if n%2 == 1 {
			kind = kinds[len(kinds)-1]
		}
		at := uint64(n/2) * size
		if err := s.postq(nil, s.op(kind, local, keys[kind], rdma.Range{Local: at, Remote: at, Len: size})); err != nil {
			e.errorf("Post from take: %v", err)
		}
	}
	after := func(evs []rdma.Event) {
		for k := range evs {
			if evs[k].Session != s.InitiatorID || evs[k].Kind != rdma.EventCompletion {
				continue
			}
			switch n := posted.Add(1); {
			case n < links:
				post(n)
			case n == links:
				close(chain)
			}
		}
	}
	s.from.recv.after.Store(&after)
	post(0)
	e.within("a chain of operations posted from take", func() { <-chain })
	s.from.recv.after.Store(nil)
	for n := range int64(links) {
		if n%2 == 0 {
			at := uint64(n/2) * size
			moved(rdma.OpWrite, local, remote, []rdma.Range{{Local: at, Remote: at, Len: size}})
		}
	}
	local.check("after a chain")
	remote.check("after a chain")

	// The first completion cancels what its batch has left, the first arrival grants, and both close their side.
	var ops []rdma.Op
	for range 16 {
		ops = append(ops, s.op(rdma.OpWrite, local, keys[rdma.OpWrite], rdma.Range{Len: links * size}))
	}
	ended, closed := make(chan struct{}), make(chan struct{})
	last := func(evs []rdma.Event) {
		if evs[0].Session == s.InitiatorID {
			s.from.recv.after.Store(nil)
			s.Initiator.Cancel(ids(ops)...)
			e.noErr(s.Initiator.Close(), "Initiator.Close from take")
			close(ended)
		}
	}
	arrived := func(evs []rdma.Event) {
		if evs[0].Session == s.TargetID {
			s.to.recv.after.Store(nil)
			_, err := s.Target.Grant(rdma.Window{Region: remote.Region, Access: rdma.AccessWrite, Bounds: remote.all()})
			if err != nil && fault.CodeOf(err) != fault.PeerLost {
				e.errorf("Grant from take: %v", err)
			}
			e.noErr(s.Target.Close(), "Target.Close from take")
			close(closed)
		}
	}
	s.from.recv.after.Store(&last)
	s.to.recv.after.Store(&arrived)
	taken := s.start(ops)
	e.within("Close from take", func() { <-ended; <-closed })
	s.ends(taken, 0, fault.Cancelled, fault.Closed, fault.PeerLost)
}
