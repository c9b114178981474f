package tcp

import (
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// region is registered memory. TCP needs nothing from the kernel for it, so registering is bookkeeping.
type region struct {
	p       *Provider
	mem     rdma.Memory
	base    uintptr // where it begins: here, or in the other process
	process int     // descriptor of that process's memory; noProcess: mapped here
	closed  atomic.Bool
}

// Register makes mapped memory and memory of another process usable; other kinds give NotSupported.
func (p *Provider) Register(m rdma.Memory) (rdma.Region, error) {
	r := &region{p: p, mem: m, process: noProcess}
	invalid := func(field, detail string) error {
		return &fault.Error{Code: fault.InvalidArgument, Op: "register", Region: m.Name, Field: field, Detail: detail}
	}
	switch m.Kind {
	case rdma.MemoryHost:
		if m.Base == nil && m.Len > 0 {
			return nil, invalid("Base", "nil, want mapped memory")
		}
		r.base = uintptr(m.Base)
	case rdma.MemoryProcess:
		if m.FD <= 0 {
			return nil, invalid("FD", "not above 0, want a descriptor of the process's memory")
		}
		if m.Addr >= 1<<62 || m.Len >= 1<<62 { // it is a file's offset, which has a sign
			return nil, invalid("Addr", "address or length is not below 2^62")
		}
		r.base, r.process = uintptr(m.Addr), m.FD
	default:
		return nil, &fault.Error{Code: fault.NotSupported, Op: "register", Region: m.Name,
			Detail: "the tcp provider reaches memory of the kinds host and process only, not " + m.Kind.String()}
	}
	if uint64(r.base)+m.Len < m.Len {
		return nil, invalid("Len", "the memory would pass the end of the address space")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed("register")
	}
	return r, nil
}

func (r *region) Memory() rdma.Memory { return r.mem }

// Close marks the region first and then walks the sessions: Grant and Post look at the mark under the lock that the
// walk takes, so each of their windows and operations is either refused or found.
func (r *region) Close() error {
	r.closed.Store(true)
	targets, initiators := r.p.sessions()
	for _, t := range targets {
		t.fenceRegion(r)
	}
	for _, i := range initiators {
		i.cancelRegion(r)
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
