package ring

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Spin decides how long who waits looks at memory before it sleeps. Waking a thread takes tens of microseconds, so a short
// look pays where the other side answers sooner; where it does not, as when a model computes on every processor, looking
// only takes time from others. So the time follows what it gained: doubled when a look found something, halved when not.
// It is used by one goroutine.
type Spin struct {
	now time.Duration
}

// MaxSpin is the longest look. Two wake-ups cost about as much.
const MaxSpin = 50 * time.Microsecond

const minSpin = 2 * time.Microsecond

// yieldEvery is how many looks are made before the processor is offered to others: a look takes about 2 ns, offering half
// a microsecond.
const yieldEvery = 64

// Until looks until found says true or the time is over, and reports what it said last.
func (s *Spin) Until(found func() bool) bool {
	if found() {
		return true
	}
	if s.now == 0 {
		s.now = MaxSpin
	}
	if runtime.NumCPU() < 2 {
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		return found()
	}
	begin := time.Now()
	for i := 1; ; i++ {
		if found() {
			s.now = min(MaxSpin, 2*s.now)
			return true
		}
		if i%yieldEvery != 0 {
			continue
		}
		if time.Since(begin) >= s.now {
			s.now = max(minSpin, s.now/2)
			return false
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
}
