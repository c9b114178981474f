package verbs

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Provider is the RDMA fabric of one node. It implements rdma.Provider.
type Provider struct {
	opt     Options
	events  *eventqueue.Queue
	devices []*device
	rails   []*rail // in the order in which peers are told of them
	left    []string

	// ctx ends with Close: it stops Connect and the hello of side channels.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // Connect and ServeSide calls

	mu         sync.Mutex
	closed     bool
	targets    map[rdma.SessionID]*target
	initiators map[rdma.SessionID]*initiator // nil while it connects
	ended      chan struct{}                 // Close is done
	err        error                         // of Close

	pins   sync.Mutex // registrations; taken before mu
	pinned map[span]*pinned
}

var _ rdma.Provider = (*Provider)(nil)

// New opens the devices that may be used. NotSupported says why there is none; InvalidArgument is about an option.
func New(opt Options) (*Provider, error) {
	opt.ensureDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	p := &Provider{opt: opt, events: eventqueue.New(), targets: map[rdma.SessionID]*target{},
		initiators: map[rdma.SessionID]*initiator{}, ended: make(chan struct{}), pinned: map[span]*pinned{}}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	if err := p.openRails(); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// Name is "verbs".
func (p *Provider) Name() string { return "verbs" }

// Caps says what the options allow. The device looks at a window's region, and with memory windows at its outer bounds; the blocks
// between them and the deadline are looked at by the initiator and by the timer that fences.
func (p *Provider) Caps() rdma.Caps {
	return rdma.Caps{Kinds: []rdma.MemoryKind{rdma.MemoryHost}, Write: true, Read: true,
		MaxRanges: p.opt.MaxRanges, MaxOpBytes: p.opt.MaxOpBytes, MaxInFlight: p.opt.MaxInFlight, MaxInFlightLen: p.opt.MaxInFlightLen}
}

// Poll moves events into dst.
func (p *Provider) Poll(dst []rdma.Event) int { return p.events.Poll(dst) }

// Wait returns when there is something to poll. After Close, with nothing left to poll, it returns Closed.
func (p *Provider) Wait(ctx context.Context) error { return p.events.Wait(ctx) }

// enter counts a call that may outlast p.mu; false after Close. wg.Done must follow.
func (p *Provider) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.wg.Add(1)
	return true
}

// sessions lists what is there. A session that is added later looks at the caller's mark itself.
func (p *Provider) sessions() (ts []*target, is []*initiator) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.targets {
		ts = append(ts, t)
	}
	for _, i := range p.initiators {
		if i != nil {
			is = append(is, i)
		}
	}
	return ts, is
}

// Close ends every session and returns when no goroutine, descriptor, registration or mapping of the provider is left. An error says
// that a device did not let go of memory.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.ended
		return p.err
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	ts, is := p.sessions()
	for _, t := range ts {
		if err := t.Close(); err != nil {
			p.err = err
		}
	}
	for _, i := range is {
		_ = i.Close()
	}
	p.pins.Lock()
	for at, pin := range p.pinned {
		if err := p.unpin(pin); err != nil && p.err == nil {
			p.err = err
		}
		delete(p.pinned, at)
	}
	p.pins.Unlock()
	for _, d := range p.devices {
		if err := d.close(); err != nil && p.err == nil {
			p.err = fault.Wrap(fault.Internal, "close device "+d.info.Name, err)
		}
	}
	p.events.Close()
	close(p.ended)
	return p.err
}

// portChanged is news of a port: its lanes go another way at once, or are tried again.
func (p *Provider) portChanged(d *device, port int, what nic.EventKind) {
	_, is := p.sessions()
	for _, i := range is {
		i.portChanged(d, port, what)
	}
}

func (i *initiator) portChanged(d *device, port int, what nic.EventKind) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended != 0 {
		return
	}
	for _, l := range i.lanes {
		if l.rail.near.dev != d || l.rail.near.port != port {
			continue
		}
		switch {
		case what == nic.PortDown:
			l.rail.suspect = true
			i.endLane(l, false)
		case what == nic.PortUp && l.state == laneIdle:
			l.stop()
			l.open()
		}
	}
	i.pump()
	i.flush()
}

// bind puts the calling thread on the CPUs of a NUMA node, where that is known and there is more than one.
func (p *Provider) bind(node int) {
	cpus := nodeCPUs(node)
	if len(cpus) == 0 {
		return
	}
	var set unix.CPUSet
	for _, c := range cpus {
		set.Set(c)
	}
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		p.opt.Logger.Debug("poller not bound to its node", "node", node, "error", err)
	}
}
