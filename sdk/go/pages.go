package kvxfer

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// This file makes pages that exist already pages of a memfd, at the same addresses. A memfd is filled with the pages'
// contents and mapped over them, a part at a time, so that memory does not double. Contents and addresses stay. Nobody may
// write to the pages meanwhile; reading is safe, because the kernel puts each part in the old one's place in one step.

// adoptChunk is how many bytes exist twice for a moment.
const adoptChunk = 64 << 20

// adoptedName marks the memfds of adopted pages, which may be adopted again.
const adoptedName = "kvxfer:adopted:"

var pageSize = uintptr(os.Getpagesize())

// sharePages turns pages, which hold e, into a sealed memfd's and returns its descriptor; its byte 0 is at pages.lo. After
// a failure the contents are what they were, the pages perhaps a memfd's, and the call may be repeated. What cannot be
// shared is NotSupported; where no memory, descriptor or mapping is left, ResourceExhausted.
func sharePages(op, name string, e, pages extent) (_ int, err error) {
	fail := func(code fault.Code, detail string, cause error) error {
		return newError(&fault.Error{Code: code, Op: op, Region: name, Field: adoptField, Detail: detail, Err: cause}, true, nil)
	}
	why, err := refusal(e, pages)
	if err != nil {
		return -1, fail(fault.Internal, "/proc/self/maps", err)
	}
	if why != "" {
		return -1, fail(fault.NotSupported, why+"; allowed anonymous private memory of unix.Mmap, from the beginning of a page to the end of one or of the mapping", nil)
	}
	size := pages.hi - pages.lo
	exhausted := func(cause error) error {
		return fail(fault.ResourceExhausted, fmt.Sprintf("%d bytes of memory could not be shared", size), cause)
	}
	fd, err := unix.MemfdCreate(adoptedName+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, exhausted(err)
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd) // what is mapped keeps its part of the object
		}
	}()
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return -1, exhausted(err)
	}
	memory := unsafe.Slice((*byte)(pointerAt(pages.lo)), size)
	for at := uintptr(0); at < size; at += adoptChunk {
		part := memory[at:min(at+adoptChunk, size)]
		if err := checkAvailable(op, adoptField, int64(len(part))); err != nil {
			return -1, err
		}
		if err := writeAll(fd, part, int64(at)); err != nil {
			return -1, exhausted(err)
		}
		_, err := unix.MmapPtr(fd, int64(at), unsafe.Pointer(unsafe.SliceData(part)), uintptr(len(part)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
		if err != nil {
			return -1, exhausted(err)
		}
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, memorySeals); err != nil {
		return -1, exhausted(err)
	}
	return fd, nil
}

// pointerAt is memory outside of Go's, which no garbage collector moves or frees.
func pointerAt(addr uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&addr)) }

// writeAll writes memory into the memfd, which allocates its pages: those of zeros too.
func writeAll(fd int, part []byte, at int64) error {
	for len(part) > 0 {
		n, err := unix.Pwrite(fd, part, at)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return err
		}
		part, at = part[n:], at+int64(n)
	}
	return nil
}

// refusal says why pages may not be replaced; "" when they may. Only whole pages can be: a page that holds something else
// besides must stay what it is, since another thread may write that something meanwhile. Who owns the rest of an edge page
// cannot be seen in /proc/self/maps, where neighbouring mappings melt into one, so an edge inside a page is taken only
// when the whole mapping is no larger than the pages of e.
func refusal(e, pages extent) (string, error) {
	found, err := mappingsIn(pages.lo, pages.hi)
	if err != nil {
		return "", err
	}
	at := pages.lo
	for _, m := range found {
		if m.lo > at {
			break
		}
		if why := m.refusal(); why != "" {
			return why, nil
		}
		at = m.hi
	}
	switch {
	case at < pages.hi:
		return "a part of it is not mapped", nil
	case e == pages, len(found) == 1 && found[0].extent == pages:
		return "", nil
	}
	return "its first or last page may hold something else besides", nil
}

// mapping is one line of /proc/self/maps.
type mapping struct {
	extent
	perms  string
	shared bool
	offset uint64
	dev    uint64
	inode  uint64
	path   string
}

func (m mapping) writable() bool { return strings.HasPrefix(m.perms, "rw") }

// refusal says why its pages must stay what they are; "" when they need not.
func (m mapping) refusal() string {
	switch {
	case !m.writable():
		return "a part of it is not mapped for reading and writing"
	case strings.HasPrefix(m.path, "/memfd:"+adoptedName): // adopted before
		return ""
	case m.path == "[heap]" || m.path == "[stack]": // used for something else later
		return "it lies in the process's " + strings.Trim(m.path, "[]")
	case strings.HasPrefix(m.path, "[anon: Go:"):
		return "it is Go's own memory"
	case m.shared || m.inode != 0 || m.path != "" && !strings.HasPrefix(m.path, "[anon:"):
		return "it is a file or shared already (" + m.path + ")"
	}
	return ""
}

// mappingsIn returns this process's mappings that have a part in lo..hi, in order.
func mappingsIn(lo, hi uintptr) ([]mapping, error) {
	raw, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, err
	}
	var found []mapping
	for line := range strings.Lines(string(raw)) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, err
		}
		if m.lo < hi && m.hi > lo {
			found = append(found, m)
		}
	}
	return found, nil
}

// parseMapping reads "lo-hi perms offset major:minor inode   path".
func parseMapping(line string) (mapping, error) {
	bad := fmt.Errorf("no line of mappings: %.80q", line)
	f := strings.SplitN(line, " ", 6)
	if len(f) < 5 || len(f[1]) != 4 {
		return mapping{}, bad
	}
	first, end, ok1 := strings.Cut(f[0], "-")
	major, minor, ok2 := strings.Cut(f[3], ":")
	var n [6]uint64
	for i, s := range [...]struct {
		text string
		base int
	}{{first, 16}, {end, 16}, {f[2], 16}, {major, 16}, {minor, 16}, {f[4], 10}} {
		v, err := strconv.ParseUint(s.text, s.base, 64)
		if err != nil {
			return mapping{}, bad
		}
		n[i] = v
	}
	if !ok1 || !ok2 || n[0] > n[1] || n[3] > 1<<32-1 || n[4] > 1<<32-1 {
		return mapping{}, bad
	}
	m := mapping{extent: extent{uintptr(n[0]), uintptr(n[1])}, perms: f[1], shared: f[1][3] == 's', offset: n[2],
		dev: unix.Mkdev(uint32(n[3]), uint32(n[4])), inode: n[5]}
	if len(f) == 6 {
		m.path = strings.TrimSpace(f[5])
	}
	return m, nil
}
