package hostmem

import (
	"errors"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

const op = "register_region"

// Fields that a MemoryRejected names.
const (
	FieldKind       = "kind"       // not a memfd, or not open for reading and writing
	FieldSeals      = "seals"      // a seal is missing or one too many
	FieldSize       = "size"       // the object has another size than was declared
	FieldAllocation = "allocation" // the object is sparse
)

// Seals of the memory object.
const (
	sealsRequired = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	sealsRefused  = unix.F_SEAL_WRITE | unix.F_SEAL_FUTURE_WRITE
)

// statBlock is the unit of st_blocks in bytes, whatever the file system's own block size is.
const statBlock = 512

// Mapping is a client's memory object, mapped for reading and writing. It implements xfer.Mapping.
type Mapping struct {
	mem      rdma.Memory
	length   uintptr // mapped bytes: Len rounded up to whole pages
	dev, ino uint64
	once     sync.Once
	err      error
}

// Map checks the memory object behind fd, which must have exactly size bytes, and maps it. name is the region's, for
// errors. Map owns fd from the call on: it closes it with an error, and else keeps it in Memory().FD until Close, because
// providers that work inside one host hand it to the other daemon. What cannot be shared safely is MemoryRejected with Field kind, seals, size or allocation.
func Map(fd int, name string, size uint64) (_ *Mapping, err error) {
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	st, err := check(fd, name, size)
	if err != nil {
		return nil, err
	}
	page := uint64(os.Getpagesize())
	length := uintptr((size + page - 1) / page * page)
	base, err := unix.MmapPtr(fd, 0, nil, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		e := fault.New(fault.Internal, op, "mmap of %d bytes", size)
		if err == unix.ENOMEM { // this process's address space or number of mappings
			e.Code = fault.ResourceExhausted
		}
		e.Region, e.Err = name, err
		return nil, e
	}
	// A core of the daemon must not hold its clients' data. A kernel that cannot do that still maps.
	_ = unix.Madvise(unsafe.Slice((*byte)(base), length), unix.MADV_DONTDUMP)
	return &Mapping{
		mem:    rdma.Memory{Kind: rdma.MemoryHost, Base: base, Len: size, Name: name, FD: fd},
		length: length,
		dev:    uint64(st.Dev),
		ino:    st.Ino,
	}, nil
}

// check refuses what must not be mapped. SEAL is among the required seals, so what it finds of seals and size stays so.
func check(fd int, name string, size uint64) (*unix.Stat_t, error) {
	reject := func(field, format string, args ...any) error {
		e := fault.New(fault.MemoryRejected, op, format, args...)
		e.Region, e.Field = name, field
		return e
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, reject(FieldKind, "not a file descriptor that can be examined: %v", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, reject(FieldKind, "file type %#o, allowed a memfd", st.Mode&unix.S_IFMT)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, reject(FieldKind, "statfs: %v", err)
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.HUGETLBFS_MAGIC {
		return nil, reject(FieldKind, "file system %#x, allowed a memfd (tmpfs or hugetlbfs)", fs.Type)
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, reject(FieldKind, "F_GETFL: %v", err)
	}
	if flags&unix.O_ACCMODE != unix.O_RDWR || flags&unix.O_PATH != 0 {
		return nil, reject(FieldKind, "not open for reading and writing")
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, reject(FieldKind, "has no seals, allowed a memfd made with MFD_ALLOW_SEALING: %v", err)
	}
	if seals&sealsRequired != sealsRequired || seals&sealsRefused != 0 {
		return nil, reject(FieldSeals, "%#x, required SHRINK, GROW and SEAL (%#x), refused WRITE and FUTURE_WRITE (%#x)",
			seals, sealsRequired, sealsRefused)
	}
	// Another size than declared means that the two sides speak of different memory, so neither direction is allowed.
	if size == 0 || st.Size < 0 || uint64(st.Size) != size {
		return nil, reject(FieldSize, "declared %d bytes, the memfd has %d; allowed exactly its size, at least 1", size, st.Size)
	}
	if have := uint64(max(st.Blocks, 0)) * statBlock; have < size {
		return nil, reject(FieldAllocation, "%d of %d bytes are allocated, allowed all: fallocate the memfd before it is sealed", have, size)
	}
	return &st, nil
}

// Memory describes the mapping to providers. It is valid until Close.
func (m *Mapping) Memory() rdma.Memory { return m.mem }

// Object identifies the memory object: two memfds that exist at the same time never have the same pair.
func (m *Mapping) Object() (dev, ino uint64) { return m.dev, m.ino }

// Close unmaps and closes the descriptor. Nothing may touch the memory any more. A second Close does nothing and returns
// the first one's error.
func (m *Mapping) Close() error {
	m.once.Do(func() {
		m.err = fault.Wrap(fault.Internal, op, errors.Join(unix.MunmapPtr(m.mem.Base, m.length), unix.Close(m.mem.FD)))
	})
	return m.err
}
