package tcp

import (
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// region is registered host memory. TCP needs nothing from the kernel for it, so registering is bookkeeping.
type region struct {
	p      *Provider
	mem    rdma.Memory
	base   uintptr
	closed atomic.Bool
}

// Register makes host memory usable; other kinds give NotSupported.
func (p *Provider) Register(m rdma.Memory) (rdma.Region, error) {
	if m.Kind != rdma.MemoryHost {
		return nil, &fault.Error{Code: fault.NotSupported, Op: "register", Region: m.Name,
			Detail: "the tcp provider reaches host memory only, not " + m.Kind.String()}
	}
	if m.Base == nil && m.Len > 0 {
		return nil, &fault.Error{Code: fault.InvalidArgument, Op: "register", Region: m.Name, Field: "Base", Detail: "nil, want mapped memory"}
	}
	if uint64(uintptr(m.Base))+m.Len < m.Len {
		return nil, &fault.Error{Code: fault.InvalidArgument, Op: "register", Region: m.Name, Field: "Len", Detail: "the memory would pass the end of the address space"}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed("register")
	}
	return &region{p: p, mem: m, base: uintptr(m.Base)}, nil
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
