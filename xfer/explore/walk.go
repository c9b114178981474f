package explore

import (
	"fmt"
	"slices"
	"strings"
)

// Run is one walk through a world.
type Run struct {
	Trace []Action
	Marks Marks
	Bad   *Violation
}

// How often a walk takes an event that ends things early, and stops a node for a while.
const (
	seldom    = 14 // one event in so many is a fault, a choice or a clock's jump
	pauseOnce = 60
	pauseMost = 50
	restMost  = 20_000 // events after which a run that only does what must happen has no end
)

// Walk takes up to `most` random events from the first state of cfg, during some of which a node is stopped and takes
// no step, then lets happen what must happen until nothing must any more, and checks that this is a proper end.
// pick(n) gives a number in [0, n).
func Walk(cfg *Config, pick func(n int) int, most int) Run {
	w := New(cfg)
	var r Run
	var acts, some []Action
	var stopped int // events that the stopped node still misses
	var owner bool  // that node is the owner
	do := func(a Action) bool {
		r.Trace = append(r.Trace, a)
		r.Bad = w.Do(a)
		r.Marks |= w.marks
		return r.Bad == nil
	}
	for len(r.Trace) < most {
		acts = w.Actions(acts[:0])
		if len(acts) == 0 {
			break
		}
		if stopped--; stopped > 0 {
			some = slices.DeleteFunc(append(some[:0], acts...), func(a Action) bool {
				return owner && a.Kind.atOwner() || !owner && a.Kind.atSource()
			})
			if len(some) > 0 {
				acts = append(acts[:0], some...)
			}
		} else if pick(pauseOnce) == 0 {
			stopped, owner = 1+pick(pauseMost), pick(2) == 0
		}
		early := pick(seldom) == 0
		some = slices.DeleteFunc(append(some[:0], acts...), func(a Action) bool { return a.Kind.early() != early })
		if len(some) == 0 {
			some = append(some, acts...)
		}
		if !do(some[pick(len(some))]) {
			return r
		}
	}
	for range restMost {
		acts = slices.DeleteFunc(w.Actions(acts[:0]), func(a Action) bool { return !a.Kind.progress() })
		if len(acts) == 0 {
			r.Bad = w.resting()
			return r
		}
		if !do(acts[pick(len(acts))]) {
			return r
		}
	}
	r.Bad = &Violation{"liveness", fmt.Sprintf("no end after %d events", restMost)}
	return r
}

// early says whether an event tends to end a run before much has happened.
func (k Kind) early() bool {
	switch k {
	case Resend, Reuse, Renew:
		return false
	}
	return k > lastOptional || k == OwnerClock || k == SourceClock
}

// Replay lets the events of a trace happen and leaves out those that cannot. It returns what it did and how it ended.
func Replay(cfg *Config, trace []Action) (done []Action, bad *Violation) {
	w := New(cfg)
	var acts []Action
	for _, a := range trace {
		if acts = w.Actions(acts[:0]); !slices.Contains(acts, a) {
			continue
		}
		done = append(done, a)
		if bad := w.Do(a); bad != nil {
			return done, bad
		}
	}
	if !progress(w.Actions(acts[:0])) {
		bad = w.resting()
	}
	return done, bad
}

// Shrink leaves events out of a trace while it still breaks the same rule.
func Shrink(cfg *Config, trace []Action, rule string) []Action {
	if done, bad := Replay(cfg, trace); bad == nil || bad.Rule != rule {
		return trace // a circle, which a replay does not see
	} else {
		trace = done
	}
	for size := max(1, len(trace)/2); ; {
		smaller := false
		for at := 0; at < len(trace); {
			less := slices.Concat(trace[:at], trace[min(at+size, len(trace)):])
			if done, bad := Replay(cfg, less); bad != nil && bad.Rule == rule && len(done) < len(trace) {
				trace, smaller = done, true
			} else {
				at += size
			}
		}
		if size == 1 && !smaller {
			return trace
		}
		size = max(1, size/2)
	}
}

var (
	leasePhases    = [...]string{"granted", "bound", "fencing", "committed", "freed", "quarantined"}
	offerPhases    = [...]string{"open", "ending", "ended", "quarantined"}
	transferPhases = [...]string{"binding", "open", "finishing", "closing", "ended"}
	viewNames      = [...]string{"own", "leased", "committed", "quarantined", "unmapped"}
)

// Format writes a trace down, an event a line with the state that it leads to.
func Format(cfg *Config, trace []Action) string {
	var b strings.Builder
	w := New(cfg)
	for i, a := range trace {
		bad := w.Do(a)
		fmt.Fprintf(&b, "%3d %-42s %s\n", i+1, a, w.summary())
		if bad != nil {
			fmt.Fprintf(&b, "    %s\n", bad)
			break
		}
	}
	return b.String()
}

func (w *World) summary() string {
	var s []string
	if !w.up {
		s = append(s, "owner down")
	}
	for i := range w.leases {
		switch l := &w.leases[i]; {
		case l.m != nil:
			s = append(s, fmt.Sprintf("lease %d %s", i, leasePhases[l.m.Phase()]))
		case l.o != nil:
			s = append(s, fmt.Sprintf("offer %d %s", i, offerPhases[l.o.Phase()]))
		}
	}
	for x := range w.transfers {
		if t := &w.transfers[x]; t.m != nil {
			s = append(s, fmt.Sprintf("transfer %d %s", x, transferPhases[t.m.Phase()]))
		}
	}
	for i := range w.blocks {
		var pieces []string
		for _, t := range w.blocks[i].mem {
			pieces = append(pieces, t.short())
		}
		s = append(s, fmt.Sprintf("block %d %s [%s]", i, viewNames[w.blocks[i].view], strings.Join(pieces, " ")))
	}
	return strings.Join(s, ", ")
}

// short is o0.1 for the owner's block 0 pattern 1, s0.1 for the source's block 0 version 1.
func (t token) short() string {
	who := 'o'
	if t&fromSource != 0 {
		who = 's'
	}
	return fmt.Sprintf("%c%d.%d", who, t>>8&0x7f, t&0xff)
}
