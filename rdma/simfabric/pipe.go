package simfabric

import "github.com/kvxfer/kvxfer/rdma"

// Pipe is one direction of a connection beside the sessions: messages keep their order and none is lost, as over TCP;
// a loss shows as delay. It is what control connections of a simulation are made of.
type Pipe struct {
	f        *Fabric
	from, to *Node
	deliver  func([]byte)

	// Under Fabric.mu. An event of the pipe takes whatever is first, so no pause changes the order.
	out  [][]byte // not sent yet
	way  [][]byte // on its way
	last rdma.Instant
	cut  bool
}

// NewPipe joins two nodes. deliver is called for each message, in order, under the fabric's lock: it queues the message
// and returns.
func (f *Fabric) NewPipe(from, to *Node, deliver func([]byte)) *Pipe {
	return &Pipe{f: f, from: from, to: to, deliver: deliver}
}

// Send queues a message, which the pipe keeps; false: the pipe is cut.
func (p *Pipe) Send(b []byte) bool {
	f := p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if p.cut || f.closed {
		return false
	}
	p.out = append(p.out, b)
	f.in(0, p.from, nil, p.leave)
	return true
}

// leave is a moment in which the sender is able to send.
func (p *Pipe) leave() {
	if p.cut {
		return
	}
	f := p.f
	b := p.out[0]
	p.out, p.way = p.out[1:], append(p.way, b)
	d := f.transit()
	for x := &f.opt.Faults; x.Loss < 1 && f.hit(x.Loss); {
		d += rdma.Instant(x.Retry)
	}
	now := f.opt.Clock.Now()
	p.last = max(p.last, now+d)
	f.note("message", p.from, nil, uint64(len(b)), 0)
	f.in(p.last-now, p.to, nil, p.arrive)
}

func (p *Pipe) arrive() {
	if p.cut {
		return
	}
	b := p.way[0]
	p.way = p.way[1:]
	p.deliver(b)
}

// Cut ends the pipe: what is on its way is lost.
func (p *Pipe) Cut() {
	p.f.mu.Lock()
	defer p.f.mu.Unlock()
	p.cut, p.out, p.way = true, nil, nil
}
