package ring

import (
	"encoding/binary"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// firstSleep is how long who sleeps trusts that the other side has seen it: see the package's text.
const firstSleep = time.Millisecond

var one = binary.LittleEndian.AppendUint64(nil, 1)

// add makes an eventfd readable. A full counter, EAGAIN, is readable enough.
func add(eventfd int) { _, _ = unix.Write(eventfd, one) }

// eventfd makes one that never blocks.
func eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fault.Wrap(fault.ResourceExhausted, op, err)
	}
	return fd, nil
}

// checkBells refuses descriptors by which a client could have the daemon wait, or reach something that is not its own.
// O_NONBLOCK would not do: it belongs to both sides, and a client can clear it again. So the daemon never reads or writes the
// doorbell (it hears of each ring by an edge), and sends to the bell with a flag that is the call's own.
func checkBells(doorbell, bell int) error {
	if kind, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(doorbell)); err != nil || kind != "anon_inode:[eventfd]" {
		return fault.Invalid(op, "fds", "%.64q as doorbell, allowed as second descriptor an eventfd", kind)
	}
	domain, err := unix.GetsockoptInt(bell, unix.SOL_SOCKET, unix.SO_DOMAIN)
	kind, err2 := unix.GetsockoptInt(bell, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || err2 != nil || domain != unix.AF_UNIX || kind != unix.SOCK_STREAM {
		return fault.Invalid(op, "fds", "the bell is something else, allowed as third descriptor a Unix stream socket")
	}
	return nil
}

// millis is a time-out for poll; below 0: none.
func millis(d time.Duration) int {
	if d < 0 {
		return -1
	}
	return int(min(d, time.Hour)+time.Millisecond-1) / int(time.Millisecond)
}

// first is how long the first sleep of several is.
func first(limit time.Duration) time.Duration {
	if limit < 0 || limit > firstSleep {
		return firstSleep
	}
	return limit
}

// rest is what is left of limit behind a sleep.
func rest(limit, slept time.Duration) time.Duration {
	if limit < 0 {
		return limit
	}
	return limit - slept
}
