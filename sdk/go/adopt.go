package kvxfer

import (
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// adoptField is what errors about the caller's memory name.
const adoptField = "buf"

// AdoptOption says how memory that exists already is handed over.
type AdoptOption interface{ adopt(*adoptOptions) }

// AdoptMode is an AdoptOption. The default is AdoptShare.
type AdoptMode string

const (
	// AdoptShare replaces the pages of buf, in place, by a memfd's that the daemon maps: address and contents stay. buf is
	// anonymous private memory of unix.Mmap, begins at a page, and ends at one or with its mapping. Go's own memory is
	// refused: its pages belong to the garbage collector. Nobody may write to buf during the call; reading is safe. What was
	// asked of the pages before (madvise, mlock, mbind) is lost with them. buf stays mapped until it was given back, and its
	// pages stay shared with forked children after that.
	AdoptShare AdoptMode = "share"
	// AdoptProcess leaves the memory as it is, of any kind; the daemon reaches it inside this process. What is promised of
	// it ends with the process: the guarantee is "live-client-only". Go's own memory may be handed over so, it does not
	// move; the SDK keeps it from being collected.
	AdoptProcess AdoptMode = "process"
	// AdoptAuto is AdoptShare where that is possible, else AdoptProcess; the log and the guarantee say which.
	AdoptAuto AdoptMode = "auto"
)

func (m AdoptMode) adopt(o *adoptOptions) { o.mode = m }

// AdoptMemfd says that buf is the caller's own mapping (MAP_SHARED) of a memfd, which is handed over as it is, by a
// descriptor of the SDK's own. The memfd needs the seals SHRINK, GROW and SEAL, all of its pages allocated (fallocate),
// and has to end with buf.
func AdoptMemfd(fd int) AdoptOption { return adoptMemfd(fd) }

type adoptMemfd int

func (fd adoptMemfd) adopt(o *adoptOptions) { o.memfd, o.hasMemfd = int(fd), true }

type adoptOptions struct {
	mode     AdoptMode
	memfd    int
	hasMemfd bool
	log      *slog.Logger // told of AdoptAuto's choice; nil: slog.Default()
}

func adoptOptionsOf(options []AdoptOption) (o adoptOptions) {
	o.mode = AdoptShare
	for _, f := range options {
		f.adopt(&o)
	}
	return o
}

// adoptMemory takes the caller's memory for the time until close; name is the region's. Two adoptions never overlap.
func adoptMemory(op, name string, buf []byte, o adoptOptions) (*memory, error) {
	switch o.mode {
	case AdoptShare, AdoptProcess, AdoptAuto, "":
	default:
		return nil, invalid(op, "adopt", "%.80q, allowed share, process, auto", string(o.mode))
	}
	if len(buf) == 0 {
		return nil, invalid(op, adoptField, "0 bytes, allowed 1 at least")
	}
	m := &memory{id: newMemoryID(), op: op, name: name, buf: buf[:len(buf):len(buf)], guarantee: guaranteeFull, kind: wire.RegionMemfd, fd: -1}
	e := extentOf(buf)
	var err error
	switch {
	case o.hasMemfd:
		err = m.takeMemfd(e, o.memfd)
	case o.mode == AdoptProcess:
		err = m.openProcess(e)
	default:
		err = m.share(e)
		if err != nil && o.mode == AdoptAuto && (isFault(err, ErrNotSupported) || isFault(err, ErrAlreadyExists)) {
			log := o.log
			if log == nil {
				log = slog.Default()
			}
			log.Warn("memory cannot be shared, what is promised of it ends with this process", "region", name, "reason", err.(*Error).Detail)
			err = m.openProcess(e)
		}
	}
	if err != nil {
		m.claim.release()
		return nil, err
	}
	return m, nil
}

func isFault(err, sentinel error) bool { e, ok := err.(*Error); return ok && e.Is(sentinel) }

// extent is a run of bytes of this process, from..to.
type extent struct{ lo, hi uintptr }

func extentOf(buf []byte) extent {
	lo := uintptr(unsafe.Pointer(unsafe.SliceData(buf)))
	return extent{lo, lo + uintptr(len(buf))}
}

func (m *memory) share(e extent) error {
	pages := extent{e.lo / pageSize * pageSize, (e.hi + pageSize - 1) / pageSize * pageSize}
	var err error
	if m.claim, err = claims.add(m, pages); err != nil {
		return err
	}
	if isGoMemory(m.buf) {
		return m.notSupported("it is Go's own memory, whose pages belong to the garbage collector; allowed memory of unix.Mmap, or of any kind with AdoptProcess")
	}
	if m.fd, err = sharePages(m.op, m.name, e, pages); err != nil {
		return err
	}
	m.offset = uint64(e.lo - pages.lo)
	return nil
}

// openProcess takes the second way. Of the opener's own address space no privilege is needed, and the daemon needs none
// with the descriptor.
func (m *memory) openProcess(e extent) (err error) {
	m.claim.release()
	if m.claim, err = claims.add(m, e); err != nil {
		return err
	}
	if m.fd, err = unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		m.fd = -1
		return newError(&fault.Error{Code: fault.NotSupported, Op: m.op, Region: m.name,
			Detail: "/proc/self/mem cannot be opened for reading and writing", Err: err}, true, nil)
	}
	m.kind, m.guarantee = wire.RegionProcess, GuaranteeLiveClientOnly
	return nil
}

// takeMemfd hands the caller's own memfd over. Whether it may be shared, the daemon checks; that buf is a mapping of it only
// this process can see.
func (m *memory) takeMemfd(e extent, fd int) (err error) {
	if m.claim, err = claims.add(m, e); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return invalid(m.op, "memfd", "descriptor %d: %v; allowed an open memfd", fd, err)
	}
	found, err := mappingsIn(e.lo, e.hi)
	if err != nil {
		return asError(m.op, err)
	}
	at := e.lo
	for i, p := range found {
		want := uint64(at-p.lo) + p.offset
		if i == 0 {
			m.offset = want
		}
		if p.lo > at || !p.shared || !p.writable() || p.inode != st.Ino || p.dev != st.Dev || want != m.offset+uint64(at-e.lo) {
			return invalid(m.op, adoptField, "it is no mapping of the memfd, shared and for reading and writing, in one run; allowed such a mapping")
		}
		at = p.hi
	}
	if at < e.hi {
		return invalid(m.op, adoptField, "a part of it is not mapped; allowed a shared mapping of the memfd")
	}
	if m.fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		m.fd = -1
		return newError(&fault.Error{Code: fault.ResourceExhausted, Op: m.op, Region: m.name, Field: "memfd", Detail: "no descriptor is left", Err: err}, true, nil)
	}
	return nil
}

func (m *memory) notSupported(format string, args ...any) error {
	e := fault.New(fault.NotSupported, m.op, format, args...)
	e.Region, e.Field = m.name, adoptField
	return newError(e, true, nil)
}

// isGoMemory tells Go's heap and variables from what unix.Mmap or C gave. The runtime has no question of its own for that, but
// attaches a clean-up to an object of Go only and panics with any other address.
func isGoMemory(buf []byte) (is bool) {
	defer func() {
		if recover() != nil {
			is = false
		}
	}()
	runtime.AddCleanup(unsafe.SliceData(buf), func(int) {}, 0).Stop()
	return true
}

// claims are the adopted memories of this process.
var claims claimTable

type claimTable struct {
	mu   sync.Mutex
	held map[*claim]struct{}
}

// claim is one of them. It keeps the memory alive.
type claim struct {
	extent
	name string
	buf  []byte
	kept bool
}

// add gives what is claimed one owner: a second adoption of a page would take it away from the first, and two caches would
// write to the same bytes.
func (t *claimTable) add(m *memory, e extent) (*claim, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for other := range t.held {
		if e.lo < other.hi && other.lo < e.hi {
			return nil, newError(&fault.Error{Code: fault.AlreadyExists, Op: m.op, Region: m.name, Field: adoptField,
				Detail: fmt.Sprintf("a part of it is handed over already, as %q; allowed memory that is not", other.name)}, true, nil)
		}
	}
	c := &claim{extent: e, name: m.name, buf: m.buf}
	if t.held == nil {
		t.held = map[*claim]struct{}{}
	}
	t.held[c] = struct{}{}
	return c, nil
}

// keep makes release do nothing: the daemon may still write to the memory.
func (c *claim) keep() {
	claims.mu.Lock()
	defer claims.mu.Unlock()
	c.kept = true
}

// release ends the claim; a nil one needs none.
func (c *claim) release() {
	if c == nil {
		return
	}
	claims.mu.Lock()
	defer claims.mu.Unlock()
	if !c.kept {
		delete(claims.held, c)
	}
}
