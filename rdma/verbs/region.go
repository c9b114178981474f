package verbs

import (
	"sync/atomic"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/numa"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// region is registered memory. Several regions of the same bytes share one registration.
type region struct {
	p      *Provider
	mem    rdma.Memory
	pinned *pinned
	closed atomic.Bool
}

// pinned is memory that the devices have pinned: one MR a device. It is the registration cache's entry; users counts its regions.
type pinned struct {
	at    span
	mrs   []nic.MR // by device index
	users int
	node  int // NUMA; -1: unknown, or the host has one
}

type span struct{ base, len uint64 }

// Register pins memory on every device. What another region has pinned already costs nothing.
func (p *Provider) Register(m rdma.Memory) (rdma.Region, error) {
	fail := func(c fault.Code, field, detail string) error {
		return &fault.Error{Code: c, Op: "register", Region: m.Name, Field: field, Detail: detail}
	}
	switch {
	case m.Kind != rdma.MemoryHost:
		return nil, fail(fault.NotSupported, "", "the verbs provider reaches memory of the kind host only, not "+m.Kind.String())
	case m.Base == nil && m.Len > 0:
		return nil, fail(fault.InvalidArgument, "Base", "nil, want mapped memory")
	case uint64(uintptr(m.Base))+m.Len < m.Len:
		return nil, fail(fault.InvalidArgument, "Len", "the memory would pass the end of the address space")
	}
	at := span{uint64(uintptr(m.Base)), m.Len}
	p.pins.Lock()
	defer p.pins.Unlock()
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return nil, errClosed("register")
	}
	pin := p.pinned[at]
	if pin == nil {
		pin = &pinned{at: at, mrs: make([]nic.MR, len(p.devices)), node: -1}
		if n := numa.Of(m); n != nil {
			pin.node = *n
		}
		if m.Len > 0 {
			if err := p.pin(pin, m.Base); err != nil {
				fe := fault.From("register", err)
				fe.Region = m.Name
				return nil, fe
			}
		}
		p.pinned[at] = pin
	}
	pin.users++
	return &region{p: p, mem: m, pinned: pin}, nil
}

func (p *Provider) pin(pin *pinned, base unsafe.Pointer) error {
	some := false
	var lost error
	for k, d := range p.devices {
		if lost = d.usable(); lost != nil {
			continue
		}
		// Where windows are used the memory itself has no remote rights: only a window's key reaches it.
		access := nic.LocalWrite | nic.WindowBind
		if !d.windows {
			access = nic.LocalWrite | nic.RemoteWrite | nic.RemoteRead
		}
		if !p.opt.NoRelaxedOrdering {
			access |= nic.Relaxed
		}
		mr, err := d.dev.Register(base, pin.at.len, access)
		if err != nil {
			_ = p.unpin(pin)
			return err
		}
		pin.mrs[k], some = mr, true
	}
	if !some {
		return lost
	}
	return nil
}

// unpin is the last fence of memory: after nil no device touches it.
func (p *Provider) unpin(pin *pinned) error {
	var first error
	for k, mr := range pin.mrs {
		if mr == nil {
			continue
		}
		if err := mr.Close(); err != nil && gate.Fences { // without fences windows are still bound to it
			if err = p.devices[k].abandon(err); err != nil && first == nil {
				first = err
				continue
			}
		}
		pin.mrs[k] = nil
	}
	return first
}

func (r *region) Memory() rdma.Memory { return r.mem }

// Close marks the region first and then walks the sessions: Grant and Post look at the mark under the lock that the walk takes,
// so each of their windows and operations is either refused or found.
func (r *region) Close() error {
	if r.closed.Swap(true) {
		return nil
	}
	targets, initiators := r.p.sessions()
	var first error
	for _, t := range targets {
		if err := t.fenceRegion(r); err != nil && first == nil {
			first = err
		}
	}
	for _, i := range initiators {
		i.cancelRegion(r)
	}
	r.p.pins.Lock()
	defer r.p.pins.Unlock()
	if r.pinned.users--; r.pinned.users > 0 {
		return first
	}
	delete(r.p.pinned, r.pinned.at)
	if err := r.p.unpin(r.pinned); err != nil {
		return err
	}
	return first
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
