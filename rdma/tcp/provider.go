package tcp

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

// Provider is the TCP fabric of one node. It implements rdma.Provider.
type Provider struct {
	opt    Options
	events *eventqueue.Queue
	take   func([]rdma.Event) // Deliver's; nil: events are polled for
	rest   rest
	sink   []byte // written by the kernel with payload that nobody may place, never read
	filler []byte // zeros, read-only: what is sent in place of payload

	// ctx ends with Close: it stops Connect and the hello of accepted lanes.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // Connect and ServeLane calls

	mu         sync.Mutex
	closed     bool
	targets    map[rdma.SessionID]*target
	initiators map[rdma.SessionID]*initiator // nil while it connects
	ended      chan struct{}                 // Close is done
}

var _ rdma.Provider = (*Provider)(nil)

// New makes a provider. It fails with InvalidArgument for an option outside its range.
func New(opt Options) (*Provider, error) {
	opt.ensureDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	p := &Provider{opt: opt, events: eventqueue.New(), targets: map[rdma.SessionID]*target{},
		initiators: map[rdma.SessionID]*initiator{}, ended: make(chan struct{})}
	var err error
	if p.sink, err = mapAnon(chunk, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		p.filler, err = mapAnon(maxPayload, unix.PROT_READ)
	}
	if err != nil {
		p.unmap()
		return nil, fault.Wrap(fault.Internal, "map scratch memory", err)
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p, nil
}

func (p *Provider) unmap() {
	for _, b := range [][]byte{p.sink, p.filler} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
}

// Name is "tcp".
func (p *Provider) Name() string { return "tcp" }

// Caps says what the options allow.
func (p *Provider) Caps() rdma.Caps {
	return rdma.Caps{Kinds: []rdma.MemoryKind{rdma.MemoryHost, rdma.MemoryProcess}, Write: true, Read: true, ChecksDeadline: true, ChecksBounds: true,
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

// Close ends every session and returns when no goroutine, descriptor or mapping of the provider is left.
func (p *Provider) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		<-p.ended
		return nil
	}
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
	ts, is := p.sessions()
	for _, t := range ts {
		_ = t.Close()
	}
	for _, i := range is {
		_ = i.Close()
	}
	p.rest.close()
	p.unmap()
	p.events.Close()
	close(p.ended)
	return nil
}
