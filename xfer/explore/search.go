package explore

import "github.com/kvxfer/kvxfer/xfer/protocol"

// Marks say what a run has seen, so that tests can show that an exploration was not empty.
type Marks uint32

const (
	SawCommitted Marks = 1 << iota
	SawFreed
	SawQuarantined
	SawLayer
	SawDone      // at the initiator
	SawHeld      // a result that was not released
	SawAbort     // the source gave up
	SawRefused   // a BIND was refused
	SawExpired   // a lease's timer fired
	SawServed    // after a restart
	SawReused    // a committed block was evicted
	SawValidated // a RELEASE was answered with OK
	lastMark

	AllMarks = lastMark - 1
)

// Result is what an exploration found.
type Result struct {
	States      int
	Transitions int
	Rests       int // states in which nothing must happen any more
	Longest     int // events of the longest run
	Marks       Marks
	Bad         *Violation
	Trace       []Action // that leads to Bad
	Cut         bool     // it stopped at the limit of states
}

// Exhaust visits every state that cfg allows, depth first, at most `most` of them (0: all), and stops at the first
// violation. It also shows that every run ends: a state that is met again on the way that led to it would be a circle,
// and a state in which nothing must happen any more has to be a proper end (see resting). Since there is no circle,
// every way that lets happen what must happen leads to such an end.
func Exhaust(cfg *Config, most int) Result {
	type level struct {
		w     *World
		key   key
		todo  []Action
		taken Action
	}
	var r Result
	var buf []byte
	onPath := map[key]bool{}
	root := New(cfg)
	k, buf := root.key(buf)
	onPath[k] = true
	r.States = 1
	stack := []level{{w: root, key: k, todo: root.Actions(nil)}}
	trace := func(last ...Action) (as []Action) {
		for _, l := range stack[1:] {
			as = append(as, l.taken)
		}
		return append(as, last...)
	}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if len(top.todo) == 0 {
			onPath[top.key] = false
			stack = stack[:len(stack)-1]
			continue
		}
		a := top.todo[0]
		top.todo = top.todo[1:]
		next := top.w
		if len(top.todo) > 0 { // the last one may use the state up
			next = top.w.clone()
		}
		r.Transitions++
		bad := next.Do(a)
		r.Marks |= next.marks
		if bad != nil {
			r.Bad, r.Trace = bad, trace(a)
			return r
		}
		k, buf = next.key(buf)
		if on, seen := onPath[k]; seen {
			if on {
				r.Bad, r.Trace = &Violation{"liveness", "a run comes back to where it was"}, trace(a)
				return r
			}
			continue
		}
		onPath[k] = true
		r.States++
		todo := next.Actions(nil)
		if !progress(todo) {
			r.Rests++
			if bad := next.resting(); bad != nil {
				r.Bad, r.Trace = bad, trace(a)
				return r
			}
		}
		stack = append(stack, level{w: next, key: k, todo: todo, taken: a})
		r.Longest = max(r.Longest, len(stack)-1)
		if r.States == most {
			r.Cut = true
			return r
		}
	}
	return r
}

func progress(as []Action) bool {
	for _, a := range as {
		if a.Kind.progress() {
			return true
		}
	}
	return false
}

// resting checks a state in which nothing must happen any more: both sides have come to an end and said so.
func (w *World) resting() *Violation {
	for x := range w.transfers {
		switch t := &w.transfers[x]; {
		case t.m == nil:
		case t.m.Phase() != protocol.TransferEnded:
			w.fail("liveness", "transfer %d never ends", x)
		case !t.reported || !t.released:
			w.fail("liveness", "the client of transfer %d is never told that its memory is free", x)
		}
	}
	if !w.up {
		return w.bad
	}
	for i := range w.leases {
		l := &w.leases[i]
		if l.m != nil && !l.m.Phase().Ended() || l.o != nil && !l.o.Phase().Ended() {
			w.fail("liveness", "lease %d never ends", i)
		}
	}
	for i := range w.blocks {
		if w.blocks[i].view == leased {
			w.fail("liveness", "the owner never hears of block %d again", i)
		}
	}
	return w.bad
}
