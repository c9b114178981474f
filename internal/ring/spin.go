package ring

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Spin decides how long who waits looks at memory before it sleeps. Waking a thread takes tens of microseconds, so a short
// look pays where the other side answers sooner; where it does not, as when a model computes on every processor, looking
// only takes time from others. So the time follows what a look would have gained: the longest while what is waited for comes
// soon behind a look, half as long each time when it comes late, and next to nothing for a while where somebody else wanted
// the processor: who sleeps is then woken before who computes, who looks waits for his turn. It is used by one goroutine.
type Spin struct {
	// Locked: the goroutine is locked to its thread. Offering its place to other goroutines would take two wake-ups then, so
	// it only offers its processor to other threads.
	Locked bool

	look  time.Duration // how long the next look is
	left  time.Time     // when the last one ended without finding; zero: it found
	avoid time.Time     // until then somebody else wants the processor
}

// MaxSpin is the longest look: what a small transfer to another node takes, both daemons of which wait in the same way.
const MaxSpin = 100 * time.Microsecond

const (
	minSpin = 2 * time.Microsecond
	// soon: what comes that soon behind a look, a wake-up included, a longest look would have seen.
	soon = 2 * MaxSpin
	// looks are made between two readings of the clock, which take as long as 25 of them.
	looks = 64
	// yieldEvery is how often the processor is offered to others. Nobody there, it takes half a microsecond, and the rest is
	// looking; the other side on the same processor, it waits no longer than this.
	yieldEvery = 2 * time.Microsecond
	// taken: an offer that took so long was taken.
	taken = 30 * time.Microsecond
	// avoidFor is how long looks stay short then.
	avoidFor = time.Millisecond
)

// Until looks until found or fetched says true or the time is over, and reports what was said last. found must cost
// nanoseconds; fetched (nil: nothing) may take a system call and is asked between looks and offers.
func (s *Spin) Until(found, fetched func() bool) bool {
	if s.left.IsZero() {
		for range looks { // the common case while both sides are busy reads no clock
			if found() {
				return true
			}
		}
	}
	if fetched != nil && fetched() {
		return true
	}
	begin := time.Now()
	s.adapt(begin)
	offered := begin
	for {
		for range looks {
			if found() {
				return true
			}
		}
		if fetched != nil && fetched() {
			return true
		}
		now := time.Now()
		if now.Sub(begin) >= s.look {
			s.left = now
			return false
		}
		if now.Sub(offered) < yieldEvery && runtime.NumCPU() > 1 {
			continue
		}
		s.offer()
		if offered = time.Now(); offered.Sub(now) > taken {
			s.avoid, s.look = offered.Add(avoidFor), minSpin
			if found() {
				return true
			}
			s.left = offered
			return false
		}
	}
}

// adapt chooses the look's length.
func (s *Spin) adapt(now time.Time) {
	switch {
	case now.Before(s.avoid):
		s.look = minSpin
	case s.look == 0 || !s.left.IsZero() && now.Sub(s.left) < soon:
		s.look = MaxSpin
	case !s.left.IsZero():
		s.look = max(minSpin, s.look/2)
	}
	s.left = time.Time{}
}

func (s *Spin) offer() {
	if !s.Locked && runtime.GOMAXPROCS(0) == 1 { // elsewhere Gosched wakes a thread that finds nothing to do
		runtime.Gosched()
	}
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}
