package shm

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// clockOffset is how far this process's CLOCK_MONOTONIC is ahead of the host's. ok is false where that cannot be said.
var clockOffset = sync.OnceValues(func() (offset int64, ok bool) { return timeNamespace("/proc/self") })

// hostMonotonic reads the clock that all processes of a host share: CLOCK_MONOTONIC without what this process's time
// namespace adds. It is 0 where that cannot be said: owners then publish no deadline and readers look at none, and the
// owner's timer alone ends a permission.
func hostMonotonic() int64 {
	offset, ok := clockOffset()
	if !ok {
		return 0
	}
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return ts.Nano() - offset
}

// timeNamespace reads what a process's time namespace adds to CLOCK_MONOTONIC, in nanoseconds.
func timeNamespace(proc string) (offset int64, ok bool) {
	own, err := os.Readlink(filepath.Join(proc, "ns/time"))
	if os.IsNotExist(err) {
		return 0, true // a kernel without time namespaces
	}
	// The file tells of the namespace that children get. That is another one after unshare(2) and no exec.
	children, err2 := os.Readlink(filepath.Join(proc, "ns/time_for_children"))
	text, err3 := os.ReadFile(filepath.Join(proc, "timens_offsets"))
	if err != nil || err2 != nil || err3 != nil || own != children {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line) // clock, seconds, nanoseconds
		if len(f) != 3 || f[0] != "monotonic" && f[0] != strconv.Itoa(unix.CLOCK_MONOTONIC) {
			continue
		}
		s, err := strconv.ParseInt(f[1], 10, 64)
		ns, err2 := strconv.ParseInt(f[2], 10, 64)
		const most = 1 << 33 // seconds whose nanoseconds an int64 holds
		if err != nil || err2 != nil || s <= -most || s >= most || ns < 0 || ns >= 1e9 {
			return 0, false
		}
		return s*1e9 + ns, true
	}
	return 0, false
}
