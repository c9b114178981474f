package shm

import (
	"context"
	"net"
	"sync"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
)

// Provider is the fabric between the processes of one host. It implements rdma.Provider.
type Provider struct {
	opt    Options
	events *eventqueue.Queue
	take   func([]rdma.Event) // nil: events are polled for
	pool   *pool
	door   *door
	path   string // of the socket
	dir    string // made for it; "": none

	// ctx ends with Close: it stops Connect and hellos.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // Connect calls, the listener and hellos

	mu         sync.Mutex
	closed     bool
	targets    map[rdma.SessionID]*target
	initiators map[rdma.SessionID]poster // nil while it connects
	ended      chan struct{}             // Close is done
}

var _ rdma.Provider = (*Provider)(nil)

// poster is the initiating side of a session of either kind.
type poster interface {
	rdma.Initiator
	cancelRegion(r *region)
	withdraw(r *region)
}

// New makes a provider that listens at Options.Path. It fails with InvalidArgument for an option outside its range and with
// ConfigInvalid when it cannot listen there.
func New(opt Options) (*Provider, error) {
	opt.ensureDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	p := &Provider{opt: opt, events: eventqueue.New(), targets: map[rdma.SessionID]*target{}, initiators: map[rdma.SessionID]poster{},
		ended: make(chan struct{})}
	ln, err := p.listen()
	if err != nil {
		return nil, err
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.pool = newPool(opt.Workers)
	p.door = newDoor(ln)
	p.wg.Go(func() { p.accept(ln) })
	return p, nil
}

// Name is "shm".
func (p *Provider) Name() string { return "shm" }

// Path is where the provider listens.
func (p *Provider) Path() string { return p.path }

// Caps says what the options allow.
func (p *Provider) Caps() rdma.Caps {
	return rdma.Caps{Kinds: []rdma.MemoryKind{rdma.MemoryHost, rdma.MemoryProcess}, Write: true, Read: true, ChecksDeadline: true,
		ChecksBounds: true, MaxRanges: p.opt.MaxRanges, MaxOpBytes: p.opt.MaxOpBytes, MaxInFlight: p.opt.MaxInFlight,
		MaxInFlightLen: p.opt.MaxInFlightLen}
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
func (p *Provider) sessions() (ts []*target, is []poster) {
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

// Close ends every session and returns when no goroutine, descriptor, mapping or file of the provider is left.
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
	p.door.close()
	p.wg.Wait()
	ts, is := p.sessions()
	for _, t := range ts {
		_ = t.Close()
	}
	for _, i := range is {
		_ = i.Close()
	}
	p.pool.stop()
	p.removeSocket()
	p.events.Close()
	close(p.ended)
	return nil
}

// door is the listener and the connections in their hello.
type door struct {
	ln *net.UnixListener

	mu     sync.Mutex
	closed bool
	inside map[*net.UnixConn]struct{}
}

// maxHellos bounds the connections in their hello: what comes beyond is closed unheard. Only processes of this user and
// root get in at all, and they wait HelloTimeout at most.
const maxHellos = 64

func newDoor(ln *net.UnixListener) *door {
	return &door{ln: ln, inside: map[*net.UnixConn]struct{}{}}
}

func (d *door) enter(c *net.UnixConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || len(d.inside) >= maxHellos {
		return false
	}
	d.inside[c] = struct{}{}
	return true
}

// leave reports whether the connection is still wanted.
func (d *door) leave(c *net.UnixConn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.inside, c)
	return !d.closed
}

func (d *door) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	_ = d.ln.Close()
	for c := range d.inside {
		_ = c.Close()
	}
}
