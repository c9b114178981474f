package hostmem

import (
	"encoding/binary"
	"hash/fnv"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// FieldAddr is what a MemoryRejected names when a range of a process cannot be reached.
const FieldAddr = "addr"

// Process is memory of a client that stays the client's own: the second way. It implements xfer.Mapping.
type Process struct {
	mem      rdma.Memory
	dev, ino uint64
	once     sync.Once
	err      error
}

// OpenProcess checks that fd is a /proc/PID/mem, open for reading and writing, and that the first and the last of the
// size bytes at addr can be read through it. name is the region's, for errors. OpenProcess owns fd from the call on: the
// Process closes it, or OpenProcess does with an error. What is something else is MemoryRejected with Field kind or addr.
func OpenProcess(fd int, name string, addr, size uint64) (*Process, error) {
	st, err := checkProcess(fd, name, addr, size)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return &Process{
		mem: rdma.Memory{Kind: rdma.MemoryProcess, FD: fd, Addr: addr, Len: size, Name: name},
		dev: uint64(st.Dev),
		ino: incarnation(st, addr, size),
	}, nil
}

func checkProcess(fd int, name string, addr, size uint64) (*unix.Stat_t, error) {
	reject := rejecter(name)
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, reject(FieldKind, "not a file descriptor that can be examined: %v", err)
	}
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return nil, reject(FieldKind, "statfs: %v", err)
	}
	link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	// The client may live in another PID namespace and have a /proc of its own, so of the path only its end is known. A
	// process that ended since leaves a mark behind it, and then the probe below says so.
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || fs.Type != unix.PROC_SUPER_MAGIC ||
		!strings.HasSuffix(strings.TrimSuffix(link, " (deleted)"), "/mem") {
		return nil, reject(FieldKind, "not a process's memory, allowed the client's /proc/self/mem")
	}
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return nil, reject(FieldKind, "F_GETFL: %v", err)
	}
	if flags&unix.O_ACCMODE != unix.O_RDWR || flags&unix.O_PATH != 0 {
		return nil, reject(FieldKind, "not open for reading and writing")
	}
	if size < 1 || addr < 1 || addr > 1<<62 || size > 1<<62 {
		return nil, reject(FieldAddr, "%d bytes at %#x, allowed 1..2^62 each", size, addr)
	}
	var one [1]byte
	for _, at := range [...]uint64{addr, addr + size - 1} {
		if n, err := unix.Pread(fd, one[:], int64(at)); n != 1 {
			return nil, reject(FieldAddr, "the byte at %#x cannot be read (%v), allowed memory that the process has mapped", at, err)
		}
	}
	return &st, nil
}

// incarnation stands for an inode number that no other memory ever has within a boot. The number of a file in /proc alone
// is given out again, but not together with the time when the inode was made, which is what its change time is; as long
// as a client keeps its descriptor open, both stay. Ranges of one process differ by address and size. A process that
// calls exec keeps both too, and loses the random id of its memory, which whoever binds to an object binds to as well.
func incarnation(st *unix.Stat_t, addr, size uint64) uint64 {
	h := fnv.New64a()
	var b [40]byte
	for i, v := range [...]uint64{st.Ino, uint64(st.Ctim.Sec), uint64(st.Ctim.Nsec), addr, size} {
		binary.LittleEndian.PutUint64(b[8*i:], v)
	}
	_, _ = h.Write(b[:])
	return h.Sum64()
}

// Memory describes the memory to providers. It is valid until Close.
func (p *Process) Memory() rdma.Memory { return p.mem }

// Object identifies the memory: equal for the same range of the same process over the same open file, and for nothing
// else in this boot.
func (p *Process) Object() (dev, ino uint64) { return p.dev, p.ino }

// Close closes the descriptor. Nothing may touch the memory any more. A second Close does nothing and returns the first
// one's error.
func (p *Process) Close() error {
	p.once.Do(func() { p.err = fault.Wrap(fault.Internal, op, unix.Close(p.mem.FD)) })
	return p.err
}
