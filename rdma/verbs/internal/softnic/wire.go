package softnic

import (
	"context"
	"time"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// maxMTU is the payload of the largest packet.
const maxMTU = 4096

type kind uint8

const (
	pktWrite kind = iota + 1
	pktSend
	pktRead
	pktAnswer // of a READ
	pktAck
	pktNak
)

type nak uint8

const (
	nakSequence nak = iota
	nakNotReady
	nakAccess
	nakInvalid
	nakOperation
)

// packet is one packet. Its payload is what the sender's memory held when the packet was sent.
type packet struct {
	wire           *Wire
	srcGID         [16]byte
	srcLID         uint16
	srcQPN, dstQPN uint32
	kind           kind
	nak            nak
	first, last    bool
	askAck         bool
	rnr            uint8
	psn            uint32
	remote         uint64 // READ, and the first of a WRITE
	length         uint32 // of the whole message, from this packet on for a READ
	rkey           uint32
	n              int // bytes of payload
	kept           bool
	data           *[maxMTU]byte
}

func (f *Fabric) packet(payload bool) *packet {
	list := &f.bare
	if payload {
		list = &f.full
	}
	if n := len(*list); n > 0 {
		p := (*list)[n-1]
		*list = (*list)[:n-1]
		return p
	}
	p := &packet{}
	if payload {
		p.data = new([maxMTU]byte)
	}
	return p
}

func (f *Fabric) recycle(p *packet) {
	data := p.data
	*p = packet{data: data}
	if data != nil {
		f.full = append(f.full, p)
	} else {
		f.bare = append(f.bare, p)
	}
}

// Faults are what a wire does to packets by chance. Probabilities are from 0 to 1.
type Faults struct {
	// Rate is how many bytes of payload leave in a second; 0: as many as come. Packets then wait for each other.
	Rate   float64
	Delay  time.Duration // of every packet
	Jitter time.Duration // more, evenly drawn; it does not reorder
	Loss   float64
	Double float64 // delivered twice, the copy up to ReorderBy later
	// Reorder is how many are delivered late without the others waiting for them: up to ReorderBy later; 0: 1 ms.
	Reorder   float64
	ReorderBy time.Duration
}

// Wire is all ways from one device to another, in this direction.
type Wire struct {
	f        *Fabric
	src, dst *Adapter
	faults   Faults
	hold     bool
	cut      bool
	last     int64 // instant of the latest delivery in order
	free     int64 // instant from which the next packet may leave; with Faults.Rate
	held     []*packet
	stats    WireStats
	changed  chan struct{} // closed and made anew when a packet is held
}

// WireStats counts packets.
type WireStats struct {
	Sent, Delivered, Lost, Doubled, Reordered uint64
	Held                                      int // now
}

// Wire gives the wire from one device to another; a device has one to itself too. Names are those of Host and Device; one that
// there is not is a mistake of the test and panics.
func (f *Fabric) Wire(fromHost, fromDevice, toHost, toDevice string) *Wire {
	f.lock()
	defer f.unlock()
	return f.wire(f.hosts[fromHost].adapters[fromDevice], f.hosts[toHost].adapters[toDevice])
}

func (f *Fabric) wire(src, dst *Adapter) *Wire {
	w := f.wires[[2]*Adapter{src, dst}]
	if w == nil {
		w = &Wire{f: f, src: src, dst: dst, changed: make(chan struct{})}
		f.wires[[2]*Adapter{src, dst}] = w
	}
	return w
}

// SetFaults changes what happens to packets that are sent from now on.
func (w *Wire) SetFaults(faults Faults) {
	w.f.lock()
	defer w.f.unlock()
	w.faults = faults
}

// Hold keeps everything that would be delivered from now on, until Release.
func (w *Wire) Hold() {
	w.f.lock()
	defer w.f.unlock()
	w.hold = true
}

// Release delivers what was held, in order and unchanged, and holds no more. It does not wait for the delivery.
func (w *Wire) Release() {
	w.f.lock()
	defer w.f.unlock()
	w.hold = false
	now := w.f.now
	for _, p := range w.held {
		w.f.sched.push(entry{at: now, p: p})
	}
	// What is sent from now on comes behind what was held, as on a line.
	w.last = max(w.last, now)
	w.held = nil
	w.f.rouse()
}

// Cut drops what is under way or held and everything that is sent, until Restore.
func (w *Wire) Cut() {
	w.f.lock()
	defer w.f.unlock()
	w.cut = true
	for _, p := range w.held {
		w.stats.Lost++
		w.f.recycle(p)
	}
	w.held = nil
	list := w.f.sched.list
	for i := range list {
		if p := list[i].p; p != nil && p.wire == w {
			p.dstQPN = nowhere
		}
	}
}

// Restore ends Cut.
func (w *Wire) Restore() {
	w.f.lock()
	defer w.f.unlock()
	w.cut = false
}

// Stats says what the wire did so far.
func (w *Wire) Stats() WireStats {
	w.f.lock()
	defer w.f.unlock()
	s := w.stats
	s.Held = len(w.held)
	return s
}

// AwaitHeld waits until at least n packets are held. It fails with DeadlineExceeded or Cancelled when ctx ends.
func (w *Wire) AwaitHeld(ctx context.Context, n int) error {
	for {
		w.f.lock()
		held, changed := len(w.held), w.changed
		w.f.unlock()
		if held >= n {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fault.From("await_held", ctx.Err())
		}
	}
}

// nowhere is no queue pair's number.
const nowhere = 0

// send puts a packet on the wire; the lock is held.
func (w *Wire) send(p *packet, now int64) {
	f, x := w.f, &w.faults
	p.wire = w
	w.stats.Sent++
	if w.cut || x.Loss > 0 && f.rng.Float64() < x.Loss {
		w.stats.Lost++
		f.recycle(p)
		return
	}
	at := now
	if x.Rate > 0 {
		at = max(at, w.free)
		w.free = at + int64(float64(p.n)/x.Rate*1e9)
	}
	at += int64(x.Delay)
	if x.Jitter > 0 {
		at += f.rng.Int64N(int64(x.Jitter))
	}
	if x.Reorder > 0 && f.rng.Float64() < x.Reorder {
		w.stats.Reordered++
		at += w.aside()
	} else {
		at = max(at, w.last)
		w.last = at
	}
	f.sched.push(entry{at: at, p: p})
	if x.Double > 0 && f.rng.Float64() < x.Double {
		w.stats.Doubled++
		c := f.packet(p.data != nil)
		data := c.data
		*c = *p
		if c.data = data; data != nil {
			move(unsafe.Pointer(data), unsafe.Pointer(p.data), p.n)
		}
		f.sched.push(entry{at: at + w.aside(), p: c})
	}
}

func (w *Wire) aside() int64 {
	by := w.faults.ReorderBy
	if by <= 0 {
		by = time.Millisecond
	}
	return w.f.rng.Int64N(int64(by))
}

// deliver is a packet's end: at a queue pair, on the list of those that are held, or nowhere.
func (f *Fabric) deliver(p *packet, now int64) {
	w := p.wire
	switch {
	case w.cut || p.dstQPN == nowhere:
		w.stats.Lost++
		f.recycle(p)
		return
	case w.hold:
		w.held = append(w.held, p)
		close(w.changed)
		w.changed = make(chan struct{})
		return
	}
	w.stats.Delivered++
	if q := w.dst.qps[p.dstQPN]; q != nil && q.hears(p) {
		switch p.kind {
		case pktWrite, pktSend, pktRead:
			q.onRequest(p, now)
		default:
			q.onResponse(p, now)
		}
	}
	if !p.kept {
		f.recycle(p)
	}
}
