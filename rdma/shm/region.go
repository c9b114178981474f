package shm

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// region is registered memory of this node.
type region struct {
	p      *Provider
	mem    rdma.Memory
	access memory
	closed atomic.Bool
}

// Register makes memory usable that can be handed to another process: memory of a memfd, or of a process.
func (p *Provider) Register(m rdma.Memory) (rdma.Region, error) {
	refuse := func(code fault.Code, field, detail string) (rdma.Region, error) {
		return nil, &fault.Error{Code: code, Op: "register", Region: m.Name, Field: field, Detail: detail}
	}
	switch {
	case m.Kind != rdma.MemoryHost && m.Kind != rdma.MemoryProcess:
		return refuse(fault.NotSupported, "", "the shm provider reaches host and process memory only, not "+m.Kind.String())
	case m.FD <= 0:
		return refuse(fault.NotSupported, "FD", "the shm provider needs a descriptor to hand to the other process, and this memory has none")
	case m.Kind == rdma.MemoryHost && m.Base == nil && m.Len > 0:
		return refuse(fault.InvalidArgument, "Base", "nil, want mapped memory")
	case m.Kind == rdma.MemoryHost && uint64(uintptr(m.Base))+m.Len < m.Len, m.Addr+m.Len < m.Len || m.Addr+m.Len > 1<<62:
		return refuse(fault.InvalidArgument, "Len", "the memory would pass the end of the address space")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed("register")
	}
	return &region{p: p, mem: m, access: memory{kind: m.Kind, base: uintptr(m.Base), fd: m.FD, addr: m.Addr, size: m.Len}}, nil
}

func (r *region) Memory() rdma.Memory { return r.mem }

// Close marks the region first and then walks the sessions: Grant and Post look at the mark under the lock that the
// walk takes, so each of their windows and operations is either refused or found.
func (r *region) Close() error {
	r.closed.Store(true)
	targets, initiators := r.p.sessions()
	for _, t := range targets {
		t.fenceRegion(r)
		t.withdraw(r)
	}
	for _, i := range initiators {
		i.cancelRegion(r)
		i.withdraw(r)
	}
	return nil
}

// ours returns the region behind r when it is this provider's and open.
func (p *Provider) ours(op string, r rdma.Region) (*region, error) {
	own, ok := r.(*region)
	if !ok || own == nil || own.p != p {
		return nil, fault.Invalid(op, "Region", "not registered with this provider")
	}
	if own.closed.Load() {
		return nil, fault.Invalid(op, "Region", "%q is closed", own.mem.Name)
	}
	return own, nil
}

// maxRegions bounds the regions that a peer can have open in one session.
const maxRegions = 4096

// foreign is memory of the peer, mapped for reading. Workers that use it are counted; the last user unmaps it.
type foreign struct {
	access memory
	mapped []byte // whole pages around it; nil of process memory
	users  int    // and one for the table
}

// adopt checks and maps what a region frame brought, and owns fd from the call on.
func adopt(f *regionFrame, fd int) (_ *foreign, err error) {
	x := &foreign{access: memory{kind: f.memory, fd: -1, addr: f.addr, size: f.len}, users: 1}
	if f.memory == rdma.MemoryProcess {
		x.access.fd = fd
		return x, checkProcess(fd)
	}
	defer unix.Close(fd)
	st, fs, err := examine(fd)
	if err != nil {
		return nil, err
	}
	if fs.Type != unix.TMPFS_MAGIC && fs.Type != unix.HUGETLBFS_MAGIC {
		return nil, violation("memory on file system %#x, want a memfd", fs.Type)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&(unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL) != unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL {
		return nil, violation("memory with seals %#x, want at least SHRINK and SEAL", seals)
	}
	if st.Size < 0 || f.addr+f.len > uint64(st.Size) {
		return nil, violation("memory [%d, +%d) in an object of %d bytes", f.addr, f.len, st.Size)
	}
	if f.len == 0 {
		return x, nil
	}
	page := uint64(fs.Bsize) // of hugetlbfs the huge page's, in which mappings begin and end
	from, to := f.addr/page*page, (f.addr+f.len+page-1)/page*page
	if x.mapped, err = unix.Mmap(fd, int64(from), int(to-from), unix.PROT_READ, unix.MAP_SHARED); err != nil {
		return nil, fault.Wrap(fault.ResourceExhausted, "map the peer's memory", err)
	}
	_ = unix.Madvise(x.mapped, unix.MADV_DONTDUMP) // a core of this daemon must not hold a client's data
	x.access.base = addressOf(x.mapped) + uintptr(f.addr-from)
	return x, nil
}

// checkProcess refuses descriptors that are no /proc/PID/mem. On others pread would work, and might wait.
func checkProcess(fd int) error {
	_, fs, err := examine(fd)
	if err == nil && fs.Type != unix.PROC_SUPER_MAGIC {
		err = violation("process memory on file system %#x, want procfs", fs.Type)
	}
	if err != nil {
		_ = unix.Close(fd)
	}
	return err
}

func (x *foreign) close() {
	if x.mapped != nil {
		_ = unix.Munmap(x.mapped)
	}
	if x.access.fd >= 0 {
		_ = unix.Close(x.access.fd)
	}
}
