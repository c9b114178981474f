package ring

import (
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const op = "ring"

// Daemon is the daemon's side of a ring. Take, Waiting and Sleep are for one goroutine; Complete, Ring and Close are for any.
type Daemon struct {
	w              words
	m              *hostmem.Mapping
	doorbell, bell int
	wake           int // an eventfd of the daemon's own: Ring
	epoll          int // doorbell and wake, by their edges
	taken          uint64
	torn           atomic.Bool // the memory cannot be reached

	completed atomic.Uint64 // written under mu
	mu        sync.Mutex
	closed    bool
}

// Open maps a ring that a client handed over. The descriptors are the ring's from then on, also with an error.
func Open(memory, doorbell, bell int, entries uint32) (*Daemon, error) {
	d := &Daemon{doorbell: doorbell, bell: bell, wake: -1, epoll: -1, closed: true}
	var err error
	if d.m, err = hostmem.Map(memory, op, Size(entries)); err == nil {
		d.w = words{d.m.Memory().Base, entries}
		err = d.open()
	}
	if err != nil {
		d.release()
		return nil, err
	}
	d.closed = false
	return d, nil
}

func (d *Daemon) open() (err error) {
	defer d.w.guarded(debug.SetPanicOnFault(true), &err)
	if err := checkBells(d.doorbell, d.bell); err != nil {
		return err
	}
	if d.w.u64(offMagic).Load() != magic || d.w.u32(offEntries).Load() != d.w.entries {
		return fault.Invalid(op, "entries", "the memory's header does not say KVXRING1 with %d entries", d.w.entries)
	}
	if d.w.u64(offTaken).Load() != 0 || d.w.u64(offCompleted).Load() != 0 || d.w.u32(offEnded).Load() != 0 {
		return fault.Invalid(op, "entries", "the ring was used before, allowed a new one")
	}
	if d.wake, err = eventfd(); err != nil {
		return err
	}
	if d.epoll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fault.Wrap(fault.ResourceExhausted, op, err)
	}
	for _, fd := range []int{d.doorbell, d.wake} {
		if err := unix.EpollCtl(d.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
			return fault.Wrap(fault.ResourceExhausted, op, err)
		}
	}
	return nil
}

var errCounts = errors.New("the ring's counts cannot be")

// Take copies up to len(dst) new posts out and returns how many. An error says that the client broke the ring.
func (d *Daemon) Take(dst []wire.Post) (taken int, err error) {
	if d.torn.Load() {
		return 0, errTorn()
	}
	defer d.w.guarded(debug.SetPanicOnFault(true), &err)
	submitted := d.w.u64(offSubmitted).Load()
	n := submitted - d.taken
	if n == 0 {
		return 0, nil
	}
	// By this side's own counts: not more than are out at a time, and none that went back behind what was taken.
	if submitted-d.completed.Load() > uint64(d.w.entries) || n > uint64(d.w.entries) {
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

// Waiting says whether Take would return posts, or an error.
func (d *Daemon) Waiting() bool {
	if d.torn.Load() {
		return true
	}
	submitted, err := d.submitted()
	return err != nil || submitted != d.taken
}

func (d *Daemon) submitted() (n uint64, err error) {
	defer d.w.guarded(debug.SetPanicOnFault(true), &err)
	return d.w.u64(offSubmitted).Load(), nil
}

// Sleep waits until the client has posted or Ring was called, or for limit (below 0: without end); it may return early. Beyond a
// millisecond, see the package's text, it looks once in between.
func (d *Daemon) Sleep(limit time.Duration) {
	d.says(1)
	defer d.says(0)
	if d.Waiting() {
		return
	}
	now := first(limit)
	if d.poll(now) || now == limit || d.Waiting() {
		return
	}
	d.poll(rest(limit, now))
}

// says tells the client whether it must ring. Where the memory is torn Waiting says so.
func (d *Daemon) says(sleeps uint32) {
	if d.torn.Load() {
		return
	}
	var err error
	defer d.w.guarded(debug.SetPanicOnFault(true), &err)
	d.w.u32(offDaemonSleeps).Store(sleeps)
}

// poll waits for a ring; false: the time is over.
func (d *Daemon) poll(wait time.Duration) bool {
	var events [2]unix.EpollEvent
	n, err := unix.EpollWait(d.epoll, events[:], millis(wait))
	return n > 0 || err != nil
}

// Ring ends a Sleep of another goroutine.
func (d *Daemon) Ring() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		add(d.wake)
	}
}

// Complete tells the client of ends, in order. It never waits for the client.
func (d *Daemon) Complete(ends ...wire.Posted) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.torn.Load() {
		return
	}
	if err := d.complete(ends); err != nil {
		d.torn.Store(true)
		add(d.wake)
	}
}

func (d *Daemon) complete(ends []wire.Posted) (err error) {
	defer d.w.guarded(debug.SetPanicOnFault(true), &err)
	n := d.completed.Load()
	d.completed.Store(n + uint64(len(ends)))
	for i := range ends {
		d.w.putPosted(n+uint64(i), ends[i])
	}
	d.w.u64(offCompleted).Store(n + uint64(len(ends)))
	if d.w.u32(offClientSleeps).Load() != 0 && d.w.u32(offClientSleeps).Swap(0) != 0 {
		d.ringBell()
	}
	return nil
}

// ringBell never waits: a client that does not empty its socket is awake enough, and gets no more.
func (d *Daemon) ringBell() {
	_ = unix.Send(d.bell, one[:1], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
}

// Close ends the ring and tells the client. Nobody may be in Take or Sleep.
func (d *Daemon) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	d.closed = true
	d.end()
	d.release()
}

func (d *Daemon) end() {
	if d.torn.Load() {
		return
	}
	var err error
	defer d.w.guarded(debug.SetPanicOnFault(true), &err)
	d.w.u32(offEnded).Store(1)
}

// release closes what is the ring's; the client sees the end of its bell.
func (d *Daemon) release() {
	if d.m != nil {
		_ = d.m.Close()
	}
	for _, fd := range []int{d.doorbell, d.bell, d.wake, d.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
