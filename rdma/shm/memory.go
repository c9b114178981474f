package shm

import (
	"errors"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm/internal/copykernel"
)

// memory is how this process reaches a region, its own or the peer's: mapped at base, or through fd from addr on.
type memory struct {
	kind rdma.MemoryKind
	base uintptr
	fd   int
	addr uint64
	size uint64
}

// holds reports whether the range lies in the region.
func (m *memory) holds(off, n uint64) bool { return off <= m.size && n <= m.size-off }

const (
	// chunk bounds the bytes that are copied between two looks at the permissions, and so how long a fence waits.
	chunk = 256 << 10
	// chunkSteps bounds its pieces.
	chunkSteps = 256
	// bounceLen is how much of one process's memory is held on its way to another's.
	bounceLen = 64 << 10
)

// copier is what one goroutine copies with. Its goroutine is under copykernel.Guard.
type copier struct {
	cut    [chunkSteps]piece // the chunk
	steps  []copykernel.Step
	bounce []byte // mapped at first use
}

func newCopier() *copier { return &copier{steps: make([]copykernel.Step, 0, chunkSteps)} }

func (c *copier) close() {
	if c.bounce != nil {
		_ = unix.Munmap(c.bounce)
		c.bounce = nil
	}
}

// piece is a range of a copy, by offsets in the two regions.
type piece struct{ dst, src, len uint64 }

// memoryFault is the error of a copy: whose memory could not be accessed.
func memoryFault(source bool, cause error) error {
	side := "destination"
	if source {
		side = "source"
	}
	return &fault.Error{Code: fault.MemoryFault, Op: "copy", Field: side, MayHaveWritten: true, Err: cause}
}

// copy moves the pieces, which lie in their regions. An error is a MemoryFault whose Field says which side failed; some of
// the bytes may be moved then.
func (c *copier) copy(dst, src *memory, pieces []piece, stream bool) error {
	if dst.kind == rdma.MemoryHost && src.kind == rdma.MemoryHost {
		c.steps = c.steps[:0]
		for _, x := range pieces {
			c.steps = append(c.steps, copykernel.Step{Dst: dst.base + uintptr(x.dst), Src: src.base + uintptr(x.src), N: uintptr(x.len)})
		}
		return c.mapped(stream)
	}
	for _, x := range pieces {
		if err := c.copyProcess(dst, src, x); err != nil {
			return err
		}
	}
	return nil
}

// mapped makes the steps.
func (c *copier) mapped(stream bool) error {
	err := copykernel.Copy(c.steps, stream)
	if err == nil { // errors.As would allocate
		return nil
	}
	if f := (*copykernel.Fault)(nil); errors.As(err, &f) {
		return memoryFault(f.Source, f)
	}
	return err
}

// span moves a chunk of an operation inside this process.
func (c *copier) span(x *part, s *span, stream bool) error {
	dst, src, write := &x.w.region.access, &x.own.access, x.kind == rdma.OpWrite
	if !write {
		dst, src = src, dst
	}
	both := dst.kind == rdma.MemoryHost && src.kind == rdma.MemoryHost
	cut, off, n := c.cut[:0], s.off, s.n
	c.steps = c.steps[:0]
	for i := s.first; n > 0; i++ {
		r := &x.ranges[i]
		k := min(r.Len-off, n)
		if k == 0 {
			continue
		}
		to, from := r.Remote+off, r.Local+off
		if !write {
			to, from = from, to
		}
		if both {
			c.steps = append(c.steps, copykernel.Step{Dst: dst.base + uintptr(to), Src: src.base + uintptr(from), N: uintptr(k)})
		} else {
			cut = append(cut, piece{to, from, k})
		}
		n, off = n-k, 0
	}
	if both {
		return c.mapped(stream)
	}
	return c.copy(dst, src, cut, stream)
}

// copyProcess moves one piece of which at least one side is another process's memory.
func (c *copier) copyProcess(dst, src *memory, x piece) error {
	switch {
	case dst.kind == rdma.MemoryHost:
		return transfer(unix.SYS_PREAD64, src, x.src, dst.base+uintptr(x.dst), x.len, true)
	case src.kind == rdma.MemoryHost:
		return transfer(unix.SYS_PWRITE64, dst, x.dst, src.base+uintptr(x.src), x.len, false)
	}
	if c.bounce == nil {
		b, err := unix.Mmap(-1, 0, bounceLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return fault.Wrap(fault.ResourceExhausted, "copy", err)
		}
		c.bounce = b
	}
	at := addressOf(c.bounce)
	for x.len > 0 {
		n := min(x.len, bounceLen)
		if err := transfer(unix.SYS_PREAD64, src, x.src, at, n, true); err != nil {
			return err
		}
		if err := transfer(unix.SYS_PWRITE64, dst, x.dst, at, n, false); err != nil {
			return err
		}
		x = piece{x.dst + n, x.src + n, x.len - n}
	}
	return nil
}

// transfer is pread or pwrite of n bytes between mapped memory at addr and process memory m. The kernel answers EFAULT for
// the mapped side; for the process's side EIO, or 0 bytes when the process is gone.
func transfer(call uintptr, m *memory, off uint64, addr uintptr, n uint64, source bool) error {
	for n > 0 {
		k, _, e := unix.Syscall6(call, uintptr(m.fd), addr, uintptr(n), uintptr(m.addr+off), 0, 0)
		switch {
		case e == syscall.EINTR:
			continue
		case e == syscall.EFAULT:
			return memoryFault(!source, e)
		case e != 0:
			return memoryFault(source, e)
		case k == 0:
			return memoryFault(source, errProcessGone)
		}
		addr += k
		off += uint64(k)
		n -= uint64(k)
	}
	return nil
}

var errProcessGone = errors.New("the process is gone")

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
