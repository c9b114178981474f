package simfabric

import (
	"context"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Node is one node's provider. It implements rdma.Provider.
type Node struct {
	f     *Fabric
	name  string
	clock rdma.Clock

	// Under Fabric.mu.
	paused, dead, closed bool
	held                 []event // kept while it is paused
	initiators           []*initiator
	targets              []*target
	events               []rdma.Event
	ready                chan struct{} // capacity 1: there may be something to poll, or nothing any more
}

var _ rdma.Provider = (*Node)(nil)

// Node adds a node whose windows read the fabric's clock. The name is for the history.
func (f *Fabric) Node(name string) *Node { return f.NodeWithClock(name, f.opt.Clock) }

// NodeWithClock adds a node whose windows read a clock of their own.
func (f *Fabric) NodeWithClock(name string, c rdma.Clock) *Node {
	n := &Node{f: f, name: name, clock: c, ready: make(chan struct{}, 1)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes = append(f.nodes, n)
	return n
}

// Name is "sim".
func (n *Node) Name() string { return "sim" }

// Caps says what the options allow.
func (n *Node) Caps() rdma.Caps { return n.f.caps }

// push queues an event. The caller holds Fabric.mu.
func (n *Node) push(ev rdma.Event) {
	n.events = append(n.events, ev)
	n.wake()
}

func (n *Node) wake() {
	select {
	case n.ready <- struct{}{}:
	default:
	}
}

// Poll moves events into dst; a paused node gives none.
func (n *Node) Poll(dst []rdma.Event) int {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if n.paused && !n.closed {
		return 0
	}
	k := copy(dst, n.events)
	if n.events = n.events[k:]; len(n.events) == 0 {
		n.events = nil
	}
	return k
}

// Wait returns when there is something to poll. After Close, with nothing left to poll, it returns Closed.
func (n *Node) Wait(ctx context.Context) error {
	for {
		n.f.mu.Lock()
		due, closed := len(n.events) > 0 && (!n.paused || n.closed), n.closed
		n.f.mu.Unlock()
		switch {
		case due:
			return nil
		case closed:
			return fault.New(fault.Closed, "wait", "the provider is closed")
		}
		select {
		case <-n.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Accept makes a session that waits for its initiator. The parameters are its secret.
func (n *Node) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	f := n.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if n.closed {
		return nil, nil, fault.New(fault.Closed, "accept", "the provider is closed")
	}
	s := &session{f: f, number: uint64(len(f.sessions)) + 1}
	t := &target{s: s, n: n, id: id, windows: map[rdma.Key]*window{}}
	s.tgt = t
	f.sessions = append(f.sessions, s)
	n.targets = append(n.targets, t)
	params := make([]byte, 16)
	for i := range params {
		params[i] = byte(f.rng.Uint32())
	}
	f.waiting[string(params)] = s
	f.note("accept", n, s, 0, 0)
	return t, params, nil
}

// Connect joins the session that params name; the address is not looked at. It waits for a peer that is paused or dead
// until ctx ends.
func (n *Node) Connect(ctx context.Context, id rdma.SessionID, _ string, params []byte) (rdma.Initiator, error) {
	f := n.f
	for {
		f.mu.Lock()
		s := f.waiting[string(params)]
		switch {
		case n.closed:
			f.mu.Unlock()
			return nil, fault.New(fault.Closed, "connect", "the provider is closed")
		case s == nil || s.over:
			f.mu.Unlock()
			return nil, fault.New(fault.PeerUnreachable, "connect", "no session waits for these parameters")
		case !s.tgt.n.paused && !s.tgt.n.dead:
			delete(f.waiting, string(params))
			i := &initiator{s: s, n: n, id: id, pending: map[uint64]*op{}}
			s.ini = i
			n.initiators = append(n.initiators, i)
			f.note("connect", n, s, 0, 0)
			f.mu.Unlock()
			return i, nil
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fault.Wrap(fault.PeerUnreachable, "connect", ctx.Err())
		}
	}
}

// Close ends every session.
func (n *Node) Close() error {
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if n.closed {
		return nil
	}
	for _, i := range n.initiators {
		i.close()
	}
	for _, t := range n.targets {
		t.close()
	}
	n.closed = true
	n.wake()
	return nil
}

// region is registered host memory.
type region struct {
	n      *Node
	mem    rdma.Memory
	bytes  []byte
	closed bool // under Fabric.mu
}

// Register makes host memory usable; other kinds give NotSupported.
func (n *Node) Register(m rdma.Memory) (rdma.Region, error) {
	switch {
	case m.Kind != rdma.MemoryHost:
		return nil, &fault.Error{Code: fault.NotSupported, Op: "register", Region: m.Name, Detail: "the sim provider reaches host memory only, not " + m.Kind.String()}
	case m.Base == nil && m.Len > 0:
		return nil, &fault.Error{Code: fault.InvalidArgument, Op: "register", Region: m.Name, Field: "Base", Detail: "nil, want mapped memory"}
	}
	n.f.mu.Lock()
	defer n.f.mu.Unlock()
	if n.closed {
		return nil, fault.New(fault.Closed, "register", "the provider is closed")
	}
	return &region{n: n, mem: m, bytes: unsafe.Slice((*byte)(m.Base), m.Len)}, nil
}

// Memory is what was registered.
func (r *region) Memory() rdma.Memory { return r.mem }

// Close fences every window on the region and cancels every operation that names it.
func (r *region) Close() error {
	r.n.f.mu.Lock()
	defer r.n.f.mu.Unlock()
	r.closed = true
	for _, t := range r.n.targets {
		t.fenceWhere(func(w *window) bool { return w.region == r })
	}
	for _, i := range r.n.initiators {
		i.endWhere(fault.Cancelled, func(o *op) bool { return o.local == r })
	}
	return nil
}

// ours returns the region behind r when it is this node's and open. The caller holds Fabric.mu.
func (n *Node) ours(op string, r rdma.Region) (*region, error) {
	own, ok := r.(*region)
	if !ok || own == nil || own.n != n {
		return nil, fault.Invalid(op, "Region", "not registered with this provider")
	}
	if own.closed {
		return nil, fault.Invalid(op, "Region", "%q is closed", own.mem.Name)
	}
	return own, nil
}
