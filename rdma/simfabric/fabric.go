package simfabric

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/rdma"
)

// Fabric joins nodes. All methods are safe for concurrent use; a history is repeated only by calls in the same order.
type Fabric struct {
	opt  Options
	caps rdma.Caps

	mu       sync.Mutex
	rng      *rand.Rand
	closed   bool
	queue    eventHeap
	number   uint64 // of the last event
	running  bool   // fire is at work and will set the timer itself
	armed    rdma.Instant
	stop     func() bool
	nodes    []*Node
	sessions []*session
	waiting  map[string]*session // accepted and not connected, by their secret
	changed  chan struct{}       // closed when a node is paused, resumed or killed
}

// New makes a fabric without nodes. It fails with InvalidArgument for an option outside its range.
func New(seed uint64, o Options) (*Fabric, error) {
	o.ensureDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	return &Fabric{opt: o, rng: rand.New(rand.NewPCG(seed, 0x73696d666162)), waiting: map[string]*session{}, changed: make(chan struct{}),
		caps: rdma.Caps{Kinds: []rdma.MemoryKind{rdma.MemoryHost}, Write: true, Read: true, ChecksDeadline: true, ChecksBounds: true,
			MaxRanges: o.MaxRanges, MaxOpBytes: o.MaxOpBytes, MaxInFlight: o.MaxInFlight, MaxInFlightLen: o.MaxInFlightLen}}, nil
}

// SetFaults replaces the faults for packets sent from now on. It fails with InvalidArgument and changes nothing.
func (f *Fabric) SetFaults(x Faults) error {
	o := Options{Clock: f.opt.Clock, Faults: x}
	o.ensureDefaults()
	if err := o.Faults.validate(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opt.Faults = o.Faults
	return nil
}

// Close throws away every packet; when it returns, none will touch memory. Providers are closed by their owners.
func (f *Fabric) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.queue = nil
	if f.stop != nil {
		f.stop()
	}
}

// InFabric is the number of packets that are on their way or kept for a node or session that is held back.
func (f *Fabric) InFabric() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.queue)
	for _, x := range f.nodes {
		n += len(x.held)
	}
	for _, s := range f.sessions {
		n += len(s.held)
	}
	return n
}

// Pause makes a node stop: it sends nothing, places nothing and reports no event until Resume.
func (f *Fabric) Pause(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("pause", n, nil, 0, 0)
	n.paused = true
	f.signal()
}

// Resume lets a paused node go on: everything that was kept for it happens now, in its old order.
func (f *Fabric) Resume(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("resume", n, nil, 0, 0)
	n.paused = false
	f.again(&n.held)
	f.signal()
	n.wake()
}

// Kill ends a node as a lost host does. What it has sent is still delivered; its peers hear of it after a while. Its
// provider's local calls go on working, so that what runs on it can be closed.
func (f *Fabric) Kill(n *Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.note("kill", n, nil, 0, 0)
	n.dead, n.held = true, nil
	for _, s := range f.sessions {
		if s.ini != nil && (s.ini.n == n || s.tgt.n == n) {
			s.lose()
		}
	}
	f.signal()
}

// Cut breaks a session without a word to either side, which notice it by themselves after a while. What is on its way
// is still delivered. end is the session's Initiator or Target.
func (f *Fabric) Cut(end any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := sessionOf(end); s != nil && s.ini != nil {
		f.note("cut", nil, s, 0, 0)
		s.lose()
	}
}

// Stall holds back what is to be delivered between a session's two sides until release is called; then it is
// delivered, in its old order. end is the session's Initiator or Target.
func (f *Fabric) Stall(end any) (release func()) {
	s := sessionOf(end)
	f.mu.Lock()
	defer f.mu.Unlock()
	s.stalled++
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.stalled--; s.stalled == 0 {
			f.again(&s.held)
		}
	})
}

func sessionOf(end any) *session {
	switch e := end.(type) {
	case *initiator:
		return e.s
	case *target:
		return e.s
	}
	return nil
}

// signal wakes whoever waits for a node's state.
func (f *Fabric) signal() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// note writes the history.
func (f *Fabric) note(what string, n *Node, s *session, op uint64, packet int) {
	if f.opt.Trace == nil {
		return
	}
	st := Step{At: f.opt.Clock.Now(), What: what, Op: op, Packet: packet}
	if n != nil {
		st.Node = n.name
	}
	if s != nil {
		st.Session = s.number
	}
	f.opt.Trace(st)
}

// hit draws whether something of probability p happens.
func (f *Fabric) hit(p float64) bool { return p > 0 && f.rng.Float64() < p }

// jitter draws the random part of a delay.
func (f *Fabric) jitter() rdma.Instant {
	if f.opt.Faults.Jitter == 0 {
		return 0
	}
	return rdma.Instant(f.rng.Int64N(int64(f.opt.Faults.Jitter) + 1))
}

// transit draws a packet's time in the fabric.
func (f *Fabric) transit() rdma.Instant { return rdma.Instant(f.opt.Faults.Delay) + f.jitter() }

// lateness draws how late a late packet is.
func (f *Fabric) lateness() rdma.Instant {
	most := int64(f.opt.Faults.LateBy)
	return rdma.Instant(most/10 + f.rng.Int64N(most-most/10+1))
}

// since is the time from an instant of a clock on, in its own units.
func since(c rdma.Clock, from rdma.Instant) rdma.Instant {
	return max(c.Now()-from, rdma.Instant(time.Nanosecond))
}
