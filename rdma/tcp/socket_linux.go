package tcp

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// socket is the descriptor of a lane in clear. It is kept out of the runtime's poller, whose part in a stream of large
// frames is the second largest after the kernel's copies: who waits here waits in poll(2), on his own thread, and is
// woken by the kernel without another thread between. A lane that had nothing to read for restAfter costs no thread: its
// descriptor lies in the provider's epoll (rest).
type socket struct {
	fd    int
	alarm int // initiator: eventfd, readable while held, so that its reader leaves poll(2). Target: -1
	rest  *rest
	over  atomic.Bool // shut: nobody waits any more

	// An initiator's, see progress.go.
	held  atomic.Bool   // somebody else reads: the reader is not to be woken by input
	help  atomic.Bool   // ...but it is, there is much to read
	holds atomic.Uint32 // grows with every hold

	eagerness int       // below 0: waits to be slept through before bytes are looked for again
	lowat     int       // the reader's: SO_RCVLOWAT as it is set
	credit    int       // the reader's: above 0 it pays to look again and again before sleeping
	since     time.Time // the reader's: it waits since then; zero: it does not
	woken     chan struct{}

	resting bool // under rest.mu: in the epoll
}

const (
	// restAfter is how long a reader keeps its thread with nothing to read.
	restAfter = time.Second
	// lookFor is how long a reader looks again and again for a next frame before it sleeps: a little longer than the kernel
	// takes to wake a thread on a processor that sleeps.
	lookFor   = 100 * time.Microsecond
	maxCredit = 8
	// busyYield is how long one may be away for leaving the processor to others: beyond it they need it more, and who is woken
	// from sleep gets it sooner.
	busyYield = 500 * time.Microsecond
	// patch is how much of a large payload a reader sleeps for: a thread that is woken for each segment loses to the copy.
	patch = 64 << 10
)

// looking says whether this machine has a processor to spare for it.
var looking = runtime.NumCPU() > 1

// takeSocket makes a socket of an accepted or dialled connection, which it closes: the descriptor is a duplicate.
func (p *Provider) takeSocket(c *carrier, initiator bool) (*socket, error) {
	s := &socket{fd: -1, alarm: -1, rest: &p.rest, lowat: 1, woken: make(chan struct{}, 1)}
	var err error
	if initiator {
		if s.alarm, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
			return nil, fault.Wrap(fault.Internal, "lane", err)
		}
	}
	if e := c.raw.Control(func(fd uintptr) { s.fd, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); e != nil {
		err = e
	}
	if err != nil {
		s.close()
		return nil, fault.Wrap(fault.Internal, "lane", err)
	}
	_ = c.conn.Close()
	return s, nil
}

// close frees the descriptors; nobody uses them any more.
func (s *socket) close() {
	s.rest.take(s)
	for _, fd := range [...]int{s.fd, s.alarm} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// shut ends the connection for both sides and gets everybody out who waits for it.
func (s *socket) shut() {
	if s.over.Swap(true) {
		return
	}
	limitOrphan(s.fd)
	_ = unix.Shutdown(s.fd, unix.SHUT_RDWR)
	s.rest.take(s)
	s.wake()
}

// wake lets a reader go on that has no thread.
func (s *socket) wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// hold gets the reader out of the way of somebody else who reads; release lets it be woken by input again.
func (s *socket) hold() {
	s.holds.Add(1)
	s.held.Store(true)
	// What the reader wanted to sleep for may be read before it finds out; see awaitInput.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, 1)
	one := [8]byte{1}
	_, _ = unix.Write(s.alarm, one[:])
	s.rest.take(s)
}

func (s *socket) release() {
	var b [8]byte
	_, _ = unix.Read(s.alarm, b[:])
	s.held.Store(false)
	s.rest.put(s)
}

// awaitRoom waits until the socket takes more.
func (s *socket) awaitRoom() {
	fds := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLOUT}}
	runtime.Gosched()
	for !s.over.Load() {
		if _, err := unix.Poll(fds[:], -1); err != unix.EINTR {
			return
		}
	}
}

// aside says whether the reader is to leave the reading to others.
func (s *socket) aside() bool { return s.held.Load() && !s.help.Load() && !s.over.Load() }

// stand waits until the reader is woken; input does not.
func (s *socket) stand() {
	s.setLowat(1)
	<-s.woken
}

// awaitInput waits until there is something to read, or the reader is woken. between says that it waits for the next
// frame and not for the rest of one, of which need bytes are missing. holds is what the socket's was when the reader last
// looked: somebody else may have read the rest since, and then to sleep for it would be to sleep for ever.
func (s *socket) awaitInput(between bool, need uint64, holds uint32) {
	if s.over.Load() {
		return
	}
	if s.aside() {
		s.stand()
		return
	}
	held := s.held.Load()
	if !between && s.eager() {
		return
	}
	if !between && need >= 2*patch && !held {
		s.setLowat(patch)
	} else {
		s.setLowat(1)
	}
	if s.holds.Load() != holds {
		return
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if between && looking && s.credit > 0 {
		yield()
		switch d := time.Since(s.since); {
		case d > busyYield:
			s.credit = -maxCredit
		case d > lookFor:
			s.credit--
		default:
			return // to look again
		}
	}
	runtime.Gosched() // whom the last frame woke goes first: this thread is about to sleep with its processor
	fds := [2]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}, {Fd: int32(s.alarm), Events: unix.POLLIN}}
	if held {
		fds[1].Fd = -1
	}
	n, _ := unix.Poll(fds[:], int(restAfter/time.Millisecond))
	if n == 0 {
		s.setLowat(1)
		s.rest.put(s)
		<-s.woken
	}
}

// eagerFor is how long a reader looks for more of a payload that is on its way before it sleeps.
const eagerFor = 200 * time.Microsecond

// eager looks for the next bytes of a payload; false: they have not come soon, or somebody else needs the processor. Who
// takes bytes as they come finds them in the cache that the kernel has just written them to, and the sender's next ones go
// to the same pages: on loop-back that makes a third of the speed. Where looking gains nothing it is left for a while.
func (s *socket) eager() bool {
	if s.eagerness < 0 {
		s.eagerness++
		return false
	}
	s.setLowat(1)
	fds := [1]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	begin := time.Now()
	for now := begin; now.Sub(begin) < eagerFor; {
		if n, _, e := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fds[0])), 1, uintptr(unsafe.Pointer(&noTime)), 0, 0, 0); n > 0 || e != 0 && e != unix.EINTR {
			return true
		}
		yield()
		before := now
		if now = time.Now(); now.Sub(before) > busyYield {
			break
		}
	}
	s.eagerness = -eagerRest
	return false
}

// eagerRest is how many waits are slept through after a look that found nothing.
const eagerRest = 1

var noTime unix.Timespec

// got tells of a frame that was read whole: had it been worth looking for?
func (s *socket) got() {
	if !s.since.IsZero() && s.credit < maxCredit && time.Since(s.since) < 2*lookFor {
		s.credit++
	}
	s.since = time.Time{}
}

// yield lets other threads have the processor.
func yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

func (s *socket) setLowat(n int) {
	if s.lowat != n && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVLOWAT, n) == nil {
		s.lowat = n
	}
}
