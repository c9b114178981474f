package ring

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/hostmem"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Client is a client's side of a ring. Submit is for one goroutine at a time, Next and Sleep for one at a time.
type Client struct {
	w              words
	m              *hostmem.Mapping
	doorbell, bell int
	submitted      uint64
	seen           uint64
	wake           [8]byte
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
	c := &Client{w: words{m.Memory().Base, entries}, m: m, doorbell: -1, bell: -1}
	for _, fd := range []*int{&c.doorbell, &c.bell} {
		if *fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			c.Close()
			return nil, fault.Wrap(fault.ResourceExhausted, op, err)
		}
	}
	c.w.u32(offEntries).Store(entries)
	c.w.u64(offMagic).Store(magic)
	return c, nil
}

// FDs are what goes to the daemon: the memory, its doorbell, and the client's bell.
func (c *Client) FDs() [3]int { return [3]int{c.m.Memory().FD, c.doorbell, c.bell} }

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
		ring(c.doorbell)
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
func (c *Client) Ready() bool { return c.w.u64(offCompleted).Load() != c.seen }

// Ended says whether the daemon reads the ring no more.
func (c *Client) Ended() bool { return c.w.u32(offEnded).Load() != 0 }

// Sleep waits until an end is there, the bell rang or limit (below 0: none) is over; it may return early.
func (c *Client) Sleep(limit time.Duration) {
	c.w.u32(offClientSleeps).Store(1)
	defer c.w.u32(offClientSleeps).Store(0)
	for first := true; !c.Ready() && !c.Ended(); first = false {
		wait := limit
		if first && (limit < 0 || limit > time.Millisecond) {
			wait = time.Millisecond
		}
		ms := -1
		if wait >= 0 {
			ms = int((wait + time.Millisecond - 1) / time.Millisecond)
		}
		fds := [1]unix.PollFd{{Fd: int32(c.bell), Events: unix.POLLIN}}
		n, err := unix.Poll(fds[:], ms)
		if n > 0 {
			_, _ = unix.Read(c.bell, c.wake[:])
		}
		if n > 0 || err != nil || wait == limit {
			return
		}
	}
}

// Wake ends a Sleep of another goroutine.
func (c *Client) Wake() { ring(c.bell) }

// Close gives the memory back. The daemon keeps its own mapping as long as it needs it. Nobody may be in another method.
func (c *Client) Close() {
	_ = c.m.Close()
	for _, fd := range []int{c.doorbell, c.bell} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
