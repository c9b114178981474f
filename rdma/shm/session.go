package shm

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm/internal/copykernel"
)

// session is what both sides of a session have: the socket, the pages, own regions that the peer knows and the peer's.
//
// Lock order: mu, then a gate or the pool's lock or the event queue. Gates are held for one chunk at most, so waiting for
// one under mu is bounded; nobody takes mu inside a gate.
type session struct {
	p      *Provider
	id     rdma.SessionID
	role   string
	crew   crew // reader, writer, tasks
	events outlet

	mu      sync.Mutex
	ended   fault.Code // why the session is over; 0: it is not
	over    atomic.Bool
	conn    *net.UnixConn // nil before the hello
	out     outbox
	page    *page
	peer    *page
	said    []notice           // regions that are to be announced or withdrawn, before anything else is said
	known   map[*region]uint32 // own regions that the peer has, by number
	lastOwn uint32
	foreign map[uint32]*foreign
	stopped atomic.Bool // a peer that did not leave in time was noted
}

// notice is a region frame to be sent; fd is -1 where the region is withdrawn.
type notice struct {
	frame regionFrame
	fd    int
}

func (s *session) init(p *Provider, id rdma.SessionID, role string) {
	s.p, s.id, s.role = p, id, role
	s.crew.init()
	s.events.init(p)
	s.known, s.foreign = map[*region]uint32{}, map[uint32]*foreign{}
}

// attach gives the session its connection and pages. mu is held.
func (s *session) attach(conn *net.UnixConn, own, peer *page, next func([]byte) ([]byte, int)) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fault.Wrap(fault.Internal, "shm", err)
	}
	_ = conn.SetWriteBuffer(8 * maxMessage) // a message that the kernel's default did not hold could never be sent
	s.conn, s.page, s.peer = conn, own, peer
	s.out.init(raw, &s.mu, next)
	return nil
}

// announce gives the number by which the peer knows a region of this side, and tells the peer first where it does not.
// mu is held.
func (s *session) announce(r *region) (uint32, error) {
	if n := s.known[r]; n != 0 {
		return n, nil
	}
	if len(s.known) >= maxRegions {
		return 0, fault.New(fault.ResourceExhausted, "shm", "the session has its %d regions", maxRegions)
	}
	// A descriptor of its own: the region may be closed before the message leaves.
	fd, err := unix.FcntlInt(uintptr(r.mem.FD), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return 0, fault.Wrap(fault.ResourceExhausted, "shm", err)
	}
	s.lastOwn++
	s.known[r] = s.lastOwn
	s.said = append(s.said, notice{regionFrame{memory: r.mem.Kind, number: s.lastOwn, addr: r.mem.Addr, len: r.mem.Len}, fd})
	return s.lastOwn, nil
}

// withdraw has the peer unmap a region. A peer that is stopped keeps it until it goes on.
func (s *session) withdraw(r *region) {
	s.mu.Lock()
	n := s.known[r]
	delete(s.known, r)
	tell := n != 0 && s.ended == 0
	if tell {
		s.said = append(s.said, notice{regionFrame{number: n}, -1})
	}
	s.mu.Unlock()
	if tell {
		s.kick()
	}
}

// notices builds the message with what is to be said of regions: one region that comes with a descriptor, or what is
// withdrawn. mu is held.
func (s *session) notices(b []byte) ([]byte, int) {
	n, fd := 0, -1
	for ; n < len(s.said) && fd < 0 && len(b) < maxMessage-regionLen; n++ {
		if x := &s.said[n]; x.fd < 0 {
			b = appendDrop(b, x.frame.number)
		} else {
			b, fd = x.frame.append(b), x.fd
		}
	}
	s.said = s.said[:copy(s.said, s.said[n:])]
	return b, fd
}

// notice takes a region frame of the peer.
func (s *session) notice(b []byte, fds *[]int) (rest []byte, err error) {
	if frameKind(b[0]) == kindDrop {
		number, rest, err := parseDrop(b)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		x := s.foreign[number]
		delete(s.foreign, number)
		s.mu.Unlock()
		if x == nil {
			return nil, violation("region %d is dropped and is not there", number)
		}
		s.unuse(x)
		return rest, nil
	}
	f, rest, err := parseRegion(b)
	if err != nil {
		return nil, err
	}
	if len(*fds) == 0 {
		return nil, violation("region %d without a descriptor", f.number)
	}
	s.mu.Lock()
	taken, count := s.foreign[f.number] != nil, len(s.foreign)
	s.mu.Unlock()
	if taken || count >= maxRegions {
		return nil, violation("region %d, of %d, comes once more or is one too many", f.number, count)
	}
	fd := (*fds)[0]
	*fds = (*fds)[1:]
	x, err := adopt(&f, fd)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.foreign[f.number] = x
	s.mu.Unlock()
	return rest, nil
}

// use gives the peer's region, which unuse must give back; nil: there is none of that number. mu is held.
func (s *session) use(number uint32) *foreign {
	x := s.foreign[number]
	if x != nil {
		x.users++
	}
	return x
}

func (s *session) unuse(x *foreign) {
	s.mu.Lock()
	s.unuseLocked(x)
	s.mu.Unlock()
}

func (s *session) unuseLocked(x *foreign) {
	if x.users--; x.users == 0 {
		x.close()
	}
}

// permit looks a permission of the peer up; false: it is not on its page. mu is held.
func (s *session) permit(slot uint32, word uint64) (permit, bool) {
	if s.peer == nil || int(slot) >= len(s.peer.slots) || word&slotState != slotOpen {
		return permit{}, false
	}
	return permit{slot: &s.peer.slots[slot], in: &s.page.in[slot], word: word}, true
}

// readers waits until the peer's workers are out of the slots, all of them together no longer than the grace. Who does not
// leave in time has read in vain: the slots' words have changed.
func (s *session) readers(slots ...uint32) {
	if s.peer == nil {
		return
	}
	until := time.Now().Add(s.p.opt.Grace)
	for _, k := range slots {
		if !outside(&s.peer.in[k], until) && !s.stopped.Swap(true) {
			s.p.opt.Logger.Info("a peer that is inside memory does not leave it; what it reads is void", "role", s.role, "session", uint64(s.id))
		}
	}
}

func (s *session) isOver() bool { return s.over.Load() }

// kick sends what there is to say.
func (s *session) kick() {
	if err := s.out.kick(); err != nil {
		_ = s.conn.CloseRead() // the reader ends the session: whoever speaks may be inside a lock's turn that ending needs
	}
}

// receive reads messages until the session is over, and says why it is.
func (s *session) receive(handle func(b []byte, fds *[]int, c *copier) ([]byte, error)) error {
	copykernel.Guard(true) // small copies are made by this goroutine
	c := newCopier()
	defer c.close()
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*4))
	for {
		n, k, flags, _, err := s.conn.ReadMsgUnix(buf, oob)
		if err != nil {
			return err
		}
		if n == 0 {
			return io.EOF
		}
		fds, err := descriptors(oob[:k])
		if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			err = violation("a message that is too large")
		}
		for b := buf[:n]; len(b) > 0 && err == nil; {
			b, err = handle(b, &fds, c)
		}
		if err == nil && len(fds) > 0 {
			err = violation("%d descriptors too many", len(fds))
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		if err != nil {
			return err
		}
		if !s.deliver() {
			return errLeft
		}
	}
}

// errLeft is receive's when the session ended while its events were brought: the caller is no member of the crew any more.
var errLeft = errors.New("the session is over")

// serve runs the session's two goroutines, which are members of its crew.
func (s *session) serve(receive func() error, fail func(error)) {
	go func() {
		err := receive()
		if err == errLeft { //nolint:errorlint // it is never wrapped
			return
		}
		fail(err)
		s.crew.leave()
		s.events.bring()
	}()
	go func() {
		if err := s.out.write(); err != nil {
			fail(err)
		}
		s.crew.leave()
		s.events.bring()
	}()
}

// descriptors takes what came beside a message.
func descriptors(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	list, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, violation("control data that cannot be read")
	}
	for i := range list {
		if more, err := unix.ParseUnixRights(&list[i]); err == nil {
			fds = append(fds, more...)
		}
	}
	return fds, nil
}

// shut is the part of ending that both sides have. mu is held; false: the session had ended.
func (s *session) shut(why fault.Code) bool {
	if s.ended != 0 {
		return false
	}
	s.ended = why
	s.over.Store(true)
	if s.conn != nil {
		s.out.end()
	}
	for _, x := range s.said {
		if x.fd >= 0 {
			_ = unix.Close(x.fd)
		}
	}
	s.said = nil
	return true
}

// dispose gives memory back after the last user. The crew has left.
func (s *session) dispose() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, x := range s.foreign {
		delete(s.foreign, n)
		s.unuseLocked(x)
	}
	s.page.close()
	s.peer.close()
	s.page, s.peer = nil, nil
}

func errClosed(op string) error { return fault.New(fault.Closed, op, "closed") }
