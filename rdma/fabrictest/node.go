package fabrictest

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

type opKey struct {
	session rdma.SessionID
	op      uint64
}

// completion is an operation's end and its place among the node's events.
type completion struct {
	rdma.Event
	count, seq int
}

// node is a provider and, where nothing else is said (Harness.Ways), a goroutine that polls it. The pump sleeps in Provider.Wait only, so a provider that loses a
// wake-up is found by whatever the test awaits.
type node struct {
	e    *env
	name string
	p    rdma.Provider
	stop context.CancelFunc
	recv *receiver // nil: events are polled for
	gone chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed after every batch of events
	seq      int
	taken    map[opKey]uint64 // operations that Post took -> their bytes
	ended    map[opKey]*completion
	pending  map[rdma.SessionID]int // taken minus ended; below zero while Post has not returned yet
	endings  map[rdma.SessionID]int // completions so far
	arrived  map[uint64]rdma.Event  // by tag
	down     map[rdma.SessionID]completion
	closed   bool             // Wait said so
	onEvent  func(rdma.Event) // called by the pump for each event as soon as it is polled
	breaches []string
}

func newNode(e *env, name string, p rdma.Provider) *node {
	ctx, stop := context.WithCancel(context.Background())
	n := &node{e: e, name: name, p: p, stop: stop, gone: make(chan struct{}), changed: make(chan struct{}),
		taken: map[opKey]uint64{}, ended: map[opKey]*completion{}, pending: map[rdma.SessionID]int{},
		endings: map[rdma.SessionID]int{}, arrived: map[uint64]rdma.Event{}, down: map[rdma.SessionID]completion{}}
	if e.h.way == Polled {
		go n.pump(ctx)
		return n
	}
	n.recv = &receiver{n: n, in: map[rdma.SessionID]bool{}}
	p.(rdma.Deliverer).Deliver(n.recv.take)
	go n.watch(ctx)
	return n
}

func (n *node) pump(ctx context.Context) {
	defer close(n.gone)
	buf := make([]rdma.Event, 61)
	for {
		if k := n.p.Poll(buf); k > 0 {
			n.take(buf[:k])
			continue
		}
		err := n.p.Wait(ctx)
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return
		case fault.CodeOf(err) == fault.Closed:
			// Provider.Close may still be ending sessions: what it has to say is polled for.
			n.locked(func() { n.closed = true; n.wake() })
			select {
			case <-time.After(time.Millisecond):
			case <-ctx.Done():
				return
			}
		default:
			n.e.errorf("node %s: Provider.Wait: %v", n.name, err)
			return
		}
	}
}

// close ends the pump and takes what is still due.
func (n *node) close() {
	n.stop()
	select {
	case <-n.gone:
	case <-time.After(n.e.bound):
		n.e.errorf("node %s: Provider.Wait has not returned %v after its context ended", n.name, n.e.bound)
		return
	}
	buf := make([]rdma.Event, 64)
	for k := n.p.Poll(buf); k > 0; k = n.p.Poll(buf) {
		n.take(buf[:k])
	}
}

func (n *node) take(evs []rdma.Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, ev := range evs {
		if n.onEvent != nil {
			n.onEvent(ev)
		}
		n.seq++
		switch ev.Kind {
		case rdma.EventCompletion:
			k := opKey{ev.Session, ev.Op}
			if c := n.ended[k]; c != nil {
				c.count++
				n.breach("operation %d of session %d completed %d times (first with %v, now with %v)",
					ev.Op, ev.Session, c.count, c.Status, ev.Status)
				continue
			}
			n.ended[k] = &completion{Event: ev, count: 1, seq: n.seq}
			n.pending[ev.Session]--
			n.endings[ev.Session]++
			if d, ok := n.down[ev.Session]; ok {
				n.breach("operation %d completed after EventDown (event %d) of its session", ev.Op, d.seq)
			}
		case rdma.EventArrival:
			n.arrived[ev.Tag] = ev
		case rdma.EventDown:
			c := n.down[ev.Session]
			if c.count++; c.count > 1 {
				n.breach("EventDown of session %d came %d times", ev.Session, c.count)
			}
			c.Event, c.seq = ev, n.seq
			n.down[ev.Session] = c
		default:
			n.breach("Poll gave an event of the unknown kind %d", ev.Kind)
		}
	}
	n.wake()
}

// wake makes whoever awaits something look again; the caller holds mu.
func (n *node) wake() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// breach notes a broken promise; the caller holds mu. Ten are enough to see what is wrong.
func (n *node) breach(format string, args ...any) {
	if len(n.breaches) < 10 {
		n.breaches = append(n.breaches, fmt.Sprintf(format, args...))
	}
}

// violations lists the promises about completions that were broken. The node's session must be over.
func (n *node) violations() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	for k := range n.taken {
		if n.ended[k] == nil {
			n.breach("operation %d of session %d was taken by Post and never completed", k.op, k.session)
		}
	}
	for k, c := range n.ended {
		want, ok := n.taken[k]
		switch {
		case !ok:
			n.breach("operation %d of session %d completed with %v, but Post did not take it", k.op, k.session, c.Status)
		case c.Status == 0 && c.Bytes != want:
			n.breach("operation %d of %d bytes completed with success and %d bytes", k.op, want, c.Bytes)
		}
	}
	return n.breaches
}

// await waits until cond, called under mu, holds. It reports a failure without ending the goroutine.
func (n *node) await(what string, cond func() bool) bool {
	tm := time.NewTimer(n.e.bound)
	defer tm.Stop()
	for {
		n.mu.Lock()
		ok, changed := cond(), n.changed
		n.mu.Unlock()
		if ok {
			return true
		}
		select {
		case <-changed:
		case <-tm.C:
			n.e.t.Helper()
			n.e.errorf("node %s: waited %v for %s", n.name, n.e.bound, what)
			return false
		}
	}
}

// wait is await for the test's own goroutine: it ends the test.
func (n *node) wait(what string, cond func() bool) {
	n.e.t.Helper()
	if !n.await(what, cond) {
		n.e.t.FailNow()
	}
}

// settle waits until every operation that was taken has completed.
func (n *node) settle(when string) bool {
	n.e.t.Helper()
	return n.await("the completion of every operation taken, "+when, func() bool {
		for _, p := range n.pending {
			if p > 0 {
				return false
			}
		}
		return true
	})
}

func (n *node) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}
