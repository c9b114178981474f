package shm

import (
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// A slot is a permission to read memory, published by its owner. Its word is generation<<2 | state, so that a slot that
// serves a second time is not taken for the first. The owner's own decisions never depend on what stands here.
type slot struct {
	word     atomic.Uint64
	deadline atomic.Int64 // the host's CLOCK_MONOTONIC in nanoseconds; 0: none
}

const (
	slotLen  = 16
	countLen = 8

	slotOpen    = 1
	slotStale   = 2
	slotExpired = 3
	slotState   = 3 // mask
)

// page is one side's part of what a session's two processes know of each other: the slots of its own memory and, for each
// slot of the other side's, how many of its workers are inside. It is a memfd that its maker alone can map for writing:
// FUTURE_WRITE keeps everybody else out, hole punching included, so that no access to it can fault.
type page struct {
	fd    int // -1 of the peer's
	mem   []byte
	slots []slot
	in    []atomic.Uint64 // for the other side's slots
}

// pageSeals are set once the maker has mapped its page.
const pageSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

func pageSize(own, other int) int {
	p := unix.Getpagesize()
	return (own*slotLen + other*countLen + p - 1) / p * p
}

func (g *page) layOut(mem []byte, own, other int) {
	g.mem = mem
	g.slots = unsafe.Slice((*slot)(unsafe.Pointer(&mem[0])), own)
	g.in = unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[own*slotLen])), other)
}

// newPage makes this side's page.
func newPage(own, other int) (*page, error) {
	fd, err := unix.MemfdCreate("kvxfer-shm-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // a kernel before 6.3
		fd, err = unix.MemfdCreate("kvxfer-shm-page", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fault.Wrap(fault.ResourceExhausted, "shm page", err)
	}
	size := pageSize(own, other)
	var mem []byte
	if err = unix.Fallocate(fd, 0, 0, int64(size)); err == nil {
		mem, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, pageSeals)
	}
	if err != nil {
		if mem != nil {
			_ = unix.Munmap(mem)
		}
		_ = unix.Close(fd)
		return nil, fault.Wrap(fault.ResourceExhausted, "shm page", err)
	}
	g := &page{fd: fd}
	g.layOut(mem, own, other)
	return g, nil
}

// peersPage maps the page that the peer made. The seals are part of the check: without them an access could fault.
func peersPage(fd, own, other int) (*page, error) {
	size := pageSize(own, other)
	st, fs, err := examine(fd)
	switch {
	case err != nil:
		return nil, err
	case fs.Type != unix.TMPFS_MAGIC:
		return nil, violation("a page on file system %#x", fs.Type)
	case st.Size != int64(size) || st.Blocks*512 < int64(size):
		return nil, violation("a page of %d bytes, %d of them allocated, want %d", st.Size, st.Blocks*512, size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&pageSeals != pageSeals {
		return nil, violation("a page with seals %#x, want %#x", seals, pageSeals)
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fault.Wrap(fault.ResourceExhausted, "shm page", err)
	}
	g := &page{fd: -1}
	g.layOut(mem, own, other)
	return g, nil
}

// examine says what a descriptor from outside is; only a regular file can be memory.
func examine(fd int) (st unix.Stat_t, fs unix.Statfs_t, err error) {
	if err = unix.Fstat(fd, &st); err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = violation("file type %#o, want a memfd", st.Mode&unix.S_IFMT)
	}
	if err == nil {
		err = unix.Fstatfs(fd, &fs)
	}
	return st, fs, err
}

func (g *page) close() {
	if g == nil {
		return
	}
	_ = unix.Munmap(g.mem)
	if g.fd >= 0 {
		_ = unix.Close(g.fd)
	}
}

// open publishes a permission and returns what the slot holds from now on.
func (s *slot) open(deadline int64) (word uint64) {
	word = s.word.Load()>>2<<2 + 4 | slotOpen
	s.deadline.Store(deadline)
	s.word.Store(word)
	return word
}

// set changes the state of a permission. From then on nobody who looks is let in.
func (s *slot) set(state uint64) { s.word.Store(s.word.Load()&^slotState | state) }

// outside waits until no worker of the peer is in the slot or until has passed, and says which. Workers stay inside for
// one chunk, so it is worth to turn a few times before it sleeps.
func outside(in *atomic.Uint64, until time.Time) bool {
	for n := 0; in.Load() != 0; n++ {
		switch {
		case n < 64:
			runtime.Gosched()
		case !time.Now().Before(until):
			return false
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
	return true
}

// permit is a permission seen by its user: a slot of the peer's page and the count of this side's workers in it.
type permit struct {
	slot *slot
	in   *atomic.Uint64
	word uint64
}

// enter announces a worker and gives 0 when it may read; leave must follow then. The order is what makes it safe: the
// owner changes the word first and looks at the count then.
func (p *permit) enter() fault.Code {
	p.in.Add(1)
	if st := p.check(); st != 0 {
		p.in.Add(^uint64(0))
		return st
	}
	return 0
}

// leave says whether what was read since enter counts. An owner that waited in vain for this worker has changed the word.
func (p *permit) leave() fault.Code {
	st := p.check()
	p.in.Add(^uint64(0))
	return st
}

func (p *permit) check() fault.Code {
	if w := p.slot.word.Load(); w != p.word {
		if w == p.word&^slotState|slotExpired {
			return fault.LeaseExpired
		}
		return fault.StaleKey
	}
	if d := p.slot.deadline.Load(); d != 0 && hostMonotonic() >= d {
		return fault.LeaseExpired
	}
	return 0
}
