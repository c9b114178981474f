package kvxfer

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// What is promised of memory that was taken back.
const (
	guaranteeFull = wire.GuaranteeFull
	// GuaranteeLiveClientOnly is Cache.Guarantee and Error.Guarantee of memory whose promise ends with its process.
	GuaranteeLiveClientOnly = wire.GuaranteeLiveClient
)

// A daemon refuses memory that could shrink under it. It maps the memory writable, so writes must not be sealed.
const memorySeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// allocateStep is how much is allocated by one system call: a signal that comes meanwhile undoes the whole call.
const allocateStep = 64 << 20

// memory is memory that a daemon may reach: a memfd of the SDK's own, or memory of the caller's (adopt.go).
type memory struct {
	id        string // 32 hex digits, random: other memory never passes for this one
	op, name  string
	buf       []byte // what the caller sees
	guarantee string // as the SDK knows it; the daemon's answer to the registration may be weaker

	mu     sync.Mutex
	fd     int    // the memfd, or this process's memory; -1 once closed
	mapped []byte // what close unmaps; nil for adopted memory, whose pages stay the caller's

	kind   string // wire.RegionMemfd or wire.RegionProcess
	offset uint64 // of buf in the memfd
	claim  *claim // of adopted memory
}

// allocateMemory makes a sealed memfd of at least size bytes, all of its pages allocated, and maps it. size is what the
// caller checked to be 1..2^62.
func allocateMemory(op, name string, size int64) (*memory, error) {
	field := "num_blocks"
	if op == "allocate_region" {
		field = "size"
	}
	whole := wholePages(size)
	if err := checkAvailable(op, field, whole); err != nil {
		return nil, err
	}
	m := &memory{id: newMemoryID(), op: op, name: name, guarantee: guaranteeFull, kind: wire.RegionMemfd, fd: -1}
	exhausted := func(err error) (*memory, error) {
		if m.fd >= 0 {
			_ = unix.Close(m.fd)
		}
		return nil, newError(&fault.Error{Code: fault.ResourceExhausted, Op: op, Region: name, Field: field,
			Detail: fmt.Sprintf("%d bytes of memory could not be allocated", whole), Err: err}, true, nil)
	}
	var err error
	if m.fd, err = unix.MemfdCreate("kvxfer:"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err != nil {
		return exhausted(err)
	}
	if err := unix.Ftruncate(m.fd, whole); err != nil {
		return exhausted(err)
	}
	// Every page now: sparse ones would be charged to whoever touches them first, and could be missing then.
	if err := allocatePages(m.fd, whole); err != nil {
		return exhausted(err)
	}
	if _, err := unix.FcntlInt(uintptr(m.fd), unix.F_ADD_SEALS, memorySeals); err != nil {
		return exhausted(err)
	}
	if m.mapped, err = unix.Mmap(m.fd, 0, int(whole), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return exhausted(err)
	}
	m.buf = m.mapped[:size:size]
	return m, nil
}

func allocatePages(fd int, size int64) error {
	for at := int64(0); at < size; {
		n := min(allocateStep, size-at)
		switch err := unix.Fallocate(fd, 0, at, n); err {
		case nil:
			at += n
		case unix.EINTR:
		default:
			return err
		}
	}
	return nil
}

func newMemoryID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the program instead
	return hex.EncodeToString(b[:])
}

func wholePages(n int64) int64 {
	page := int64(os.Getpagesize())
	return (n + page - 1) / page * page
}

// bytes is the memory, shared with the daemon; nil once closed. Slices of it must not be used after close.
func (m *memory) bytes() []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return nil
	}
	return m.buf
}

// registration is what hands the memory over under a name, and a duplicate of its descriptor that goes with it, the caller's
// to close: the memory's own could be closed meanwhile, and its number be another file's. Closed: the memory was given back.
func (m *memory) registration(name string) (wire.RegisterRegion, int, *fault.Error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		e := fault.New(fault.Closed, m.op, "its memory was given back")
		e.Region = m.name
		return wire.RegisterRegion{}, -1, e
	}
	fd, err := unix.FcntlInt(uintptr(m.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return wire.RegisterRegion{}, -1, &fault.Error{Code: fault.ResourceExhausted, Op: m.op, Region: m.name, Detail: "no descriptor is left", Err: err}
	}
	r := wire.RegisterRegion{Name: name, ID: m.id, Kind: m.kind, Size: uint64(len(m.buf)), Offset: m.offset}
	switch m.kind {
	case wire.RegionProcess:
		r.Addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.buf))))
	case wire.RegionMemfd:
		if m.mapped != nil {
			r.Size = uint64(len(m.mapped))
		}
	}
	return r, fd, nil
}

// close gives the memory up once it is fenced: what the SDK allocated is unmapped, what it adopted stays the caller's as it
// is. A second call does nothing.
func (m *memory) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fd < 0 {
		return nil
	}
	err := unix.Close(m.fd)
	m.fd = -1
	if m.mapped != nil {
		err = errors.Join(err, unix.Munmap(m.mapped))
	}
	m.claim.release()
	m.buf, m.mapped = nil, nil
	if err != nil {
		return newError(&fault.Error{Code: fault.Internal, Op: "close", Region: m.name, Err: err}, true, nil)
	}
	return nil
}

// giveUp ends the use of memory that is not known to be fenced: the daemon may still write to it. What the SDK allocated is
// unmapped all the same, since the pages are a memfd's and become nobody else's. Adopted memory stays claimed for good, and
// held reports that: its owner must not hand its pages to anything else.
func (m *memory) giveUp() (held bool) {
	m.mu.Lock()
	adopted, open := m.mapped == nil, m.fd >= 0
	if adopted && open {
		m.claim.keep()
	}
	m.mu.Unlock()
	_ = m.close()
	return adopted && open
}

// checkAvailable refuses what the machine cannot hold. A memfd has no limit of its own: without this check a wrong number
// calls the kernel's out-of-memory killer. size is in bytes.
func checkAvailable(op, field string, size int64) error {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	available, ok := availableIn(string(raw))
	if ok && uint64(size) > available {
		return newError(&fault.Error{Code: fault.ResourceExhausted, Op: op, Field: field,
			Detail: fmt.Sprintf("%d bytes are needed, %d are available", size, available)}, true, nil)
	}
	return nil
}

// availableIn reads the bytes of MemAvailable and SwapFree together.
func availableIn(meminfo string) (bytes uint64, ok bool) {
	found := 0
	for line := range strings.Lines(meminfo) {
		name, rest, _ := strings.Cut(line, ":")
		if name != "MemAvailable" && name != "SwapFree" {
			continue
		}
		number, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		kib, err := strconv.ParseUint(number, 10, 53)
		if err != nil {
			return 0, false
		}
		bytes += kib << 10
		found++
	}
	return bytes, found == 2
}
