package ring

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Client is a client's side of a ring. Submit is for one goroutine at a time, Next and Sleep for one at a time; Ended, Ready
// and Wake are for any.
type Client struct {
	w         words
	m         *hostmem.Mapping
	doorbell  int
	bell      int // the client's end of a socket pair
	theirs    int // the daemon's; -1 when it was handed over
	wake      int // an eventfd: Wake
	submitted uint64
	seen      uint64
	word      [64]byte    // what is read of bells: on a stack it would escape where the race detector is on
	gone      atomic.Bool // the daemon's end of the bell is closed
}

// New makes a ring.
func New(entries uint32) (*Client, error) {
	if err := (&wire.Ring{Entries: entries}).Validate(); err != nil {
		return nil, err
	}
	if !Usable() {
		return nil, fault.New(fault.NotSupported, op, "this hardware has no total store order: post over the socket")
	}
	m, err := hostmem.Allocate(op, Size(entries))
	if err != nil {
		return nil, err
	}
	c := &Client{w: words{m.Memory().Base, entries}, m: m, doorbell: -1, bell: -1, theirs: -1, wake: -1}
	if err := c.bells(); err != nil {
		c.Close()
		return nil, err
	}
	c.w.u32(offEntries).Store(entries)
	c.w.u64(offMagic).Store(magic)
	return c, nil
}

func (c *Client) bells() (err error) {
	if c.doorbell, err = eventfd(); err != nil {
		return err
	}
	if c.wake, err = eventfd(); err != nil {
		return err
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fault.Wrap(fault.ResourceExhausted, op, err)
	}
	c.bell, c.theirs = pair[0], pair[1]
	return nil
}

// FDs are what goes to the daemon: the memory, its doorbell, and its end of the client's bell. They stay the client's.
func (c *Client) FDs() [3]int { return [3]int{c.m.Memory().FD, c.doorbell, c.theirs} }

// Handed says that the daemon has the descriptors: from now on only it holds its end of the bell, whose end is the daemon's.
func (c *Client) Handed() {
	_ = unix.Close(c.theirs)
	c.theirs = -1
}

// Entries is how many posts may be out at a time.
func (c *Client) Entries() uint32 { return c.w.entries }

// Submit posts; false: as many as the ring has entries are out, and Next must be called first.
func (c *Client) Submit(p wire.Post) bool {
	if c.submitted-c.w.u64(offSeen).Load() >= uint64(c.w.entries) {
		return false
	}
	c.w.putPost(c.submitted, p)
	c.submitted++
	c.w.u64(offSubmitted).Store(c.submitted)
	if c.w.u32(offDaemonSleeps).Load() != 0 {
		add(c.doorbell)
	}
	return true
}

// Next returns the next end; false: none is there.
func (c *Client) Next() (wire.Posted, bool) {
	if c.w.u64(offCompleted).Load() == c.seen {
		return wire.Posted{}, false
	}
	p := c.w.getPosted(c.seen)
	c.seen++
	c.w.u64(offSeen).Store(c.seen)
	return p, true
}

// Ready says whether Next would return something.
func (c *Client) Ready() bool { return c.w.u64(offCompleted).Load() != c.w.u64(offSeen).Load() }

// Ended says whether the daemon reads the ring no more, as it said or because it is gone.
func (c *Client) Ended() bool { return c.gone.Load() || c.w.u32(offEnded).Load() != 0 }

// Sleep waits until an end is there, the ring has ended, Wake was called or limit (below 0: none) is over; it may return early.
func (c *Client) Sleep(limit time.Duration) {
	c.w.u32(offClientSleeps).Store(1)
	defer c.w.u32(offClientSleeps).Store(0)
	if c.Ready() || c.Ended() {
		return
	}
	now := first(limit)
	if c.poll(now) || now == limit || c.Ready() || c.Ended() {
		return
	}
	c.poll(rest(limit, now))
}

// poll waits for the bell or Wake and silences them; false: the time is over.
func (c *Client) poll(wait time.Duration) bool {
	fds := [2]unix.PollFd{{Fd: int32(c.bell), Events: unix.POLLIN}, {Fd: int32(c.wake), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], millis(wait))
	if err != nil || n <= 0 {
		return err != nil
	}
	if fds[0].Revents != 0 {
		if n, err := unix.Read(c.bell, c.word[:]); n == 0 || err != nil && err != unix.EAGAIN && err != unix.EINTR {
			c.gone.Store(true)
		}
	}
	if fds[1].Revents != 0 {
		_, _ = unix.Read(c.wake, c.word[:8])
	}
	return true
}

// Wake ends a Sleep of another goroutine.
func (c *Client) Wake() { add(c.wake) }

// Close gives the memory back. The daemon keeps its own mapping as long as it needs it. Nobody may be in another method.
func (c *Client) Close() {
	_ = c.m.Close()
	for _, fd := range []int{c.doorbell, c.bell, c.theirs, c.wake} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
