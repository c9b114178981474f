package benchcmd

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// busyEnough is the share of the processors from which on what others do is warned of: a run with fewer threads than its
// rivals gets less of a processor than one with more, and the limit has few.
const busyEnough = 0.1

// instant is how much processor time was used until a moment: by everybody, and by this run.
type instant struct {
	at        time.Time
	all, ours time.Duration
}

// look takes the processes of this run that are there.
func look(p *pair, l *limit) (instant, error) {
	i := instant{at: time.Now()}
	var err error
	if i.all, err = busy(); err != nil {
		return i, err
	}
	if i.ours, err = clockOf(os.Getpid()); err != nil {
		return i, err
	}
	if p != nil {
		t, err := p.cpu()
		if err != nil {
			return i, err
		}
		beside, err := cpuOf(p.busy)
		if err != nil {
			return i, err
		}
		i.ours += t + beside
	}
	if l != nil {
		t, err := l.cpu()
		if err != nil {
			return i, err
		}
		i.ours += t
	}
	return i, nil
}

// others is the share of all processors, 0 to 1, that was used by others between two moments.
func others(from, to instant) float64 {
	there := time.Duration(runtime.NumCPU()) * to.at.Sub(from.at)
	used := (to.all - from.all) - (to.ours - from.ours)
	return min(max(used.Seconds()/there.Seconds(), 0), 1)
}

// busy is the time that all processors have worked or were withheld by the hypervisor, since the start of the host.
func busy() (time.Duration, error) {
	const path = "/proc/stat"
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("%s begins with %.80q", path, line)
	}
	const tick = time.Second / 100 // the kernel's promise to programs, whatever its own clock does
	var sum time.Duration
	for i, f := range fields[1:9] { // user nice system idle iowait irq softirq steal
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s begins with %.80q", path, line)
		}
		if i != 3 && i != 4 {
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// clockOf is the time that a process's threads have run, those that ended included: its clock as clock_getcpuclockid
// makes it, in nanoseconds.
func clockOf(pid int) (time.Duration, error) {
	const scheduled = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &t); err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	return time.Duration(t.Nano()), nil
}
