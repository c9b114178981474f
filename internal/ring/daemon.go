package ring

import (
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const op = "ring"

// Daemon is the daemon's side of a ring. Take, Sleep and Ended are for one goroutine; Complete and Close are for any.
type Daemon struct {
	w              words
	m              *hostmem.Mapping
	doorbell, bell int
	taken          uint64
	wake           [8]byte

	completed atomic.Uint64 // written under mu
	mu        sync.Mutex
	closed    bool
}

// Open maps a ring that a client handed over. The descriptors are the ring's from then on, also with an error.
func Open(memory, doorbell, bell int, entries uint32) (*Daemon, error) {
	closeBells := func() { _, _ = unix.Close(doorbell), unix.Close(bell) }
	m, err := hostmem.Map(memory, op, Size(entries))
	if err != nil {
		closeBells()
		return nil, err
	}
	for _, fd := range []int{doorbell, bell} {
		if err := checkEventfd(fd); err != nil {
			_ = m.Close()
			closeBells()
			return nil, err
		}
	}
	d := &Daemon{w: words{m.Memory().Base, entries}, m: m, doorbell: doorbell, bell: bell}
	if d.w.u64(offMagic).Load() != magic || d.w.u32(offEntries).Load() != entries {
		d.Close()
		return nil, fault.Invalid(op, "entries", "the memory's header does not say KVXRING1 with %d entries", entries)
	}
	if d.w.u64(offTaken).Load() != 0 || d.w.u64(offCompleted).Load() != 0 || d.w.u32(offEnded).Load() != 0 {
		d.Close()
		return nil, fault.Invalid(op, "entries", "the ring was used before, allowed a new one")
	}
	return d, nil
}

// checkEventfd makes a descriptor that cannot be waited for, or that would block the daemon, a typed error. What the client
// does with its own end hurts nobody else: writes do not block and reads happen behind poll.
func checkEventfd(fd int) error {
	if kind, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil || kind != "anon_inode:[eventfd]" {
		return fault.Invalid(op, "fds", "%.64q, allowed as second and third descriptor eventfds", kind)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return fault.Wrap(fault.InvalidArgument, op, err)
	}
	return nil
}

var errCounts = errors.New("the ring's counts cannot be")

// Take copies up to len(dst) new posts out and returns how many. An error says that the client broke the ring.
func (d *Daemon) Take(dst []wire.Post) (int, error) {
	submitted := d.w.u64(offSubmitted).Load()
	n := submitted - d.taken
	if n == 0 {
		return 0, nil
	}
	if submitted-d.completed.Load() > uint64(d.w.entries) { // by this side's own count; also of counts that went back
		return 0, fault.Wrap(fault.ProtocolViolation, op, errCounts)
	}
	n = min(n, uint64(len(dst)))
	for i := range n {
		dst[i] = d.w.getPost(d.taken + i)
	}
	d.taken += n
	d.w.u64(offTaken).Store(d.taken)
	return int(n), nil
}

// Waiting says whether Take would return posts.
func (d *Daemon) Waiting() bool { return d.w.u64(offSubmitted).Load() != d.taken }

// Sleep waits until the client has posted or ring was rung, or for limit (below 0: without end); it may return early. Beyond a
// millisecond, see the package's text, it looks once in between.
func (d *Daemon) Sleep(limit time.Duration) {
	d.w.u32(offDaemonSleeps).Store(1)
	defer d.w.u32(offDaemonSleeps).Store(0)
	for first := true; !d.Waiting(); first = false {
		wait := limit
		if first && (limit < 0 || limit > time.Millisecond) {
			wait = time.Millisecond
		}
		if d.poll(wait) || wait == limit {
			return
		}
	}
}

// poll waits for the doorbell and silences it; false: it did not ring.
func (d *Daemon) poll(wait time.Duration) bool {
	ms := -1
	if wait >= 0 {
		ms = int((wait + time.Millisecond - 1) / time.Millisecond)
	}
	fds := [1]unix.PollFd{{Fd: int32(d.doorbell), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], ms)
	if n > 0 {
		_, _ = unix.Read(d.doorbell, d.wake[:])
	}
	return n > 0 || err != nil
}

// Ring wakes who sleeps; the daemon's other goroutines use it.
func (d *Daemon) Ring() { ring(d.doorbell) }

var one = binary.LittleEndian.AppendUint64(nil, 1)

func ring(eventfd int) {
	_, _ = unix.Write(eventfd, one) // a full counter is awake enough
}

// Complete tells the client of ends, in order.
func (d *Daemon) Complete(ends ...wire.Posted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	n := d.completed.Load()
	for _, p := range ends {
		d.w.putPosted(n, p)
		n++
	}
	d.completed.Store(n)
	d.w.u64(offCompleted).Store(n)
	if d.w.u32(offClientSleeps).Load() != 0 && d.w.u32(offClientSleeps).Swap(0) != 0 {
		ring(d.bell)
	}
}

// Close ends the ring and tells the client. Nobody may be in Take or Sleep.
func (d *Daemon) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.closed = true
	d.w.u32(offEnded).Store(1)
	ring(d.bell)
	_ = d.m.Close()
	_, _ = unix.Close(d.doorbell), unix.Close(d.bell)
}
