package simtest

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// Raw is an attached process with one region without a cache. It implements xfer.Sink. Its image is what every byte must
// hold that nobody may write: all but the parts under an open advertisement for writing and under an own read. At one time
// a byte may be in one of its advertisements or transfers only.
type Raw struct {
	Node   *Node
	ID     xfer.ClientID
	Region uint64
	Name   string
	w      *World
	mem    *memory

	mu       sync.Mutex
	rng      *rand.Rand // of patterns
	image    []byte
	loose    []bool // bytes that may change
	adverts  map[uint64]*Advert
	scatters map[uint64]*Scatter
	gone     bool // the engine has given the memory up
	lost     bool // its daemon died
}

// Advert is an advertisement and what its owner heard of it. Read it when it has ended, or with Raw.Locked.
type Advert struct {
	Raw      *Raw
	ID       uint64
	Ticket   string
	Mode     string
	Spans    []wire.RegionSpan
	Deadline time.Time // on the bubble's clock; Renew moves it
	Holders  []Holder
	Ends     int // events that ended it
	End      wire.LeaseEvent
	EndedAt  time.Time
	held     []byte // of a read: the whole region when it began
	shut     bool   // its bytes are the owner's again
}

// Scatter is a transfer of raw memory and what the client that began it heard of it.
type Scatter struct {
	Raw      *Raw
	ID       uint64
	Name     string // its transfer id, which the owner's events name
	Mode     string
	Ranges   []wire.ScatterRange
	Note     []byte
	Deadline time.Time
	Advert   *Advert

	Ends       int
	End        wire.TransferEvent
	EndedAt    time.Time
	Released   int // times that its memory was given back
	ReleasedAt time.Time
	source     []byte // of a write: the ranges' bytes, one after the other
	begun      bool   // the call that began it has returned
}

// Raw attaches a process whose region, named after it, has so many bytes, filled at random from the seed.
func (n *Node) Raw(name string, size, seed uint64) *Raw {
	t := n.w.T
	t.Helper()
	r := &Raw{Node: n, Name: name, w: n.w, rng: rand.New(rand.NewPCG(seed, 4)), loose: make([]bool, size),
		adverts: map[uint64]*Advert{}, scatters: map[uint64]*Scatter{}}
	var err error
	if r.mem, err = newMemory(size, n.w.regions.Add(1), r.unmapped); err != nil {
		t.Fatal(err)
	}
	pattern(r.rng, r.mem.bytes, 0)
	r.image = bytes.Clone(r.mem.bytes)
	if r.ID, err = n.Engine.AddClient(xfer.ClientInfo{Tenant: "default", Process: name}, r); err != nil {
		t.Fatal(err)
	}
	n.w.mu.Lock()
	n.w.attached = append(n.w.attached, r)
	n.w.mu.Unlock()
	info, err := n.Engine.RegisterRegion(context.Background(), r.ID, wire.RegisterRegion{Name: name, ID: fmt.Sprintf("%032x", r.mem.ino), Kind: "memfd", Size: size}, r.mem)
	if err != nil {
		t.Fatal(err)
	}
	r.Region = info.Region
	return r
}

// Advertise opens parts of the region, for so many transfers (0: any number). Of a read nobody changes them until it
// ends; at its end, which its last instant is too, the owner writes bytes there that no reader may ever get.
func (r *Raw) Advertise(mode string, uses uint32, ttl time.Duration, spans ...wire.RegionSpan) (*Advert, error) {
	a := &Advert{Mode: mode, Spans: spans}
	r.mu.Lock()
	r.check()
	for _, s := range spans {
		r.fresh(s.Off, s.Len)
		r.mark(s.Off, s.Len, mode == wire.ModeWrite)
	}
	if mode == wire.ModeRead {
		a.held = bytes.Clone(r.mem.bytes)
	}
	r.mu.Unlock()
	deadline := time.Now().Add(ttl)
	info, err := r.Node.Engine.Advertise(context.Background(), r.ID, wire.Advertise{Region: r.Region, Mode: mode, Uses: uses, TTLMillis: ttl.Milliseconds()}, spans)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.shut(a)
		return nil, err
	}
	if early := r.adverts[info.Lease]; early != nil {
		a.Holders, a.Ends, a.End, a.EndedAt = early.Holders, early.Ends, early.End, early.EndedAt
	}
	a.Raw, a.ID, a.Ticket = r, info.Lease, info.Ticket
	r.adverts[a.ID] = a
	r.w.mu.Lock()
	r.w.adverts[a.Ticket] = a
	r.w.mu.Unlock()
	r.until(a, deadline)
	if a.Ends > 0 { // its end came first
		r.takeBack(a)
	}
	return a, nil
}

// until sets an advertisement's last instant. The caller holds r.mu.
func (r *Raw) until(a *Advert, deadline time.Time) {
	a.Deadline = deadline
	time.AfterFunc(time.Until(deadline), func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if a.Deadline.Equal(deadline) && !r.lost && !r.gone { // it was not renewed since
			r.shut(a)
		}
	})
}

// shut gives an advertisement's bytes their image: from here on no byte lands or is read, whether its end is known yet or
// not. The caller holds r.mu.
func (r *Raw) shut(a *Advert) {
	if a.shut {
		return
	}
	a.shut = true
	for _, s := range a.Spans {
		if a.Mode == wire.ModeWrite {
			r.settle(s.Off, s.Len)
		} else {
			r.scribble(s.Off, s.Len, givenBack)
		}
	}
}

// takeBack is the end of an advertisement: its owner uses the memory at this very moment. The caller holds r.mu.
func (r *Raw) takeBack(a *Advert) {
	if r.gone {
		return // unmapped has given every byte its image
	}
	r.check()
	r.shut(a)
	if a.Mode == wire.ModeWrite {
		for _, s := range a.Spans {
			r.scribble(s.Off, s.Len, 0)
		}
	}
}

// Renew moves the advertisement's end to ttl from now. What has ended, or whose time is over, must not come back to life.
func (a *Advert) Renew(ttl time.Duration) error {
	r := a.Raw
	var dead bool
	r.Locked(func() { dead = a.Ends > 0 || a.shut })
	if err := r.Node.Engine.Renew(r.ID, wire.Renew{Lease: a.ID, TTLMillis: ttl.Milliseconds()}); err != nil {
		return err
	}
	if dead {
		r.w.T.Errorf("a renewal revived advertisement %d of %s", a.ID, r.Name)
	}
	r.Locked(func() { r.until(a, time.Now().Add(ttl)) })
	return nil
}

// Revoke takes the memory back.
func (a *Advert) Revoke() error { return a.Raw.Node.Engine.Revoke(a.Raw.ID, a.ID) }

// Deregister gives the region up; the memory counts as unmapped when it has returned without an error.
func (r *Raw) Deregister() error {
	err := r.Node.Engine.DeregisterRegion(context.Background(), r.ID, r.Region)
	if err == nil && !r.Unmapped() {
		r.w.T.Errorf("region %s is deregistered and still mapped", r.Name)
	}
	return err
}

// Scatter starts a transfer between the region and an advertised one.
func (r *Raw) Scatter(mode, ticket string, timeout time.Duration, note []byte, ranges ...wire.ScatterRange) (*Scatter, error) {
	s := &Scatter{Raw: r, Mode: mode, Ranges: ranges, Note: note, Deadline: time.Now().Add(timeout)}
	r.w.mu.Lock()
	s.Advert = r.w.adverts[ticket]
	r.w.mu.Unlock()
	r.mu.Lock()
	r.check()
	for _, x := range ranges {
		r.fresh(x.Local, x.Len)
		r.mark(x.Local, x.Len, mode == wire.ModeRead)
		s.source = append(s.source, r.mem.bytes[x.Local:][:x.Len]...)
	}
	r.mu.Unlock()
	info, err := r.Node.Engine.Scatter(r.ID, wire.ScatterRequest{Region: r.Region, Mode: mode, Ticket: ticket, TimeoutMillis: timeout.Milliseconds(), Notification: note}, ranges)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		for _, x := range ranges {
			r.settle(x.Local, x.Len)
		}
		return nil, err
	}
	if early := r.scatters[info.Transfer]; early != nil {
		s.Ends, s.End, s.EndedAt, s.Released, s.ReleasedAt = early.Ends, early.End, early.EndedAt, early.Released, early.ReleasedAt
	}
	s.ID, s.Name, s.begun = info.Transfer, info.TransferID, true
	r.scatters[s.ID] = s
	r.w.mu.Lock()
	r.w.scatters[s.Name] = s
	r.w.mu.Unlock()
	if s.Released > 0 {
		r.reuse(s)
	}
	return s, nil
}

// Cancel ends it early.
func (s *Scatter) Cancel() { s.Raw.Node.Engine.CancelTransfer(s.Raw.ID, s.ID) }

// reuse takes a transfer's own memory back: the owner writes what must not be sent any more, or looks at what was read.
// The caller holds r.mu.
func (r *Raw) reuse(s *Scatter) {
	if r.gone {
		return
	}
	for _, x := range s.Ranges {
		if s.Mode == wire.ModeWrite {
			r.scribble(x.Local, x.Len, givenBack)
			continue
		}
		r.settle(x.Local, x.Len)
		if s.End.Error != nil {
			r.scribble(x.Local, x.Len, 0)
		} else if !bytes.Equal(s.Advert.held[x.Remote:][:x.Len], r.mem.bytes[x.Local:][:x.Len]) {
			r.w.T.Errorf("a read of %d bytes to %d of %s ended well without what its source held", x.Len, x.Local, r.Name)
		}
	}
}

// HolderEnded implements xfer.Sink. What a writer's end tells of is there to be seen.
func (r *Raw) HolderEnded(ev wire.HolderEvent, note []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return
	}
	a := r.advert(ev.Lease)
	a.Holders = addHolder(r.w.T, a.Holders, a.Ends, ev, note)
	r.w.mu.Lock()
	s := r.w.scatters[ev.TransferID]
	r.w.mu.Unlock()
	if s == nil || ev.Error != nil || r.gone {
		return
	}
	if !bytes.Equal(s.Note, note) {
		r.w.T.Errorf("transfer %s brought %s another notification", s.Name, r.Name)
	}
	rest := s.source
	for _, x := range s.Ranges {
		if a.Mode == wire.ModeWrite && !a.shut && !bytes.Equal(rest[:x.Len], r.mem.bytes[x.Remote:][:x.Len]) {
			r.w.T.Errorf("the end of transfer %s was told before %d bytes of it at %d of %s", s.Name, x.Len, x.Remote, r.Name)
		}
		rest = rest[x.Len:]
	}
}

// LeaseEnded implements xfer.Sink.
func (r *Raw) LeaseEnded(ev wire.LeaseEvent, _ []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return
	}
	a := r.advert(ev.Lease)
	a.Ends++
	a.End, a.EndedAt = ev, time.Now()
	r.takeBack(a)
}

// Prepared implements xfer.Sink.
func (r *Raw) Prepared(wire.PreparedEvent) {}

// TransferEnded implements xfer.Sink.
func (r *Raw) TransferEnded(ev wire.TransferEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return
	}
	s := r.scatter(ev.Transfer)
	s.Ends++
	s.End, s.EndedAt = ev, time.Now()
	if ev.Released {
		r.released(s)
	}
}

// Released implements xfer.Sink.
func (r *Raw) Released(ev wire.Released) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.lost {
		r.released(r.scatter(ev.Transfer))
	}
}

func (r *Raw) released(s *Scatter) {
	s.Released++
	s.ReleasedAt = time.Now()
	if s.begun {
		r.reuse(s)
	}
}

// LayersVisible implements xfer.Sink.
func (r *Raw) LayersVisible(wire.LayersVisible) {
	r.w.T.Errorf("layers of %s, which has none", r.Name)
}

// advert and scatter find a record or make it, since an event may come before the call that began it has returned.
func (r *Raw) advert(id uint64) *Advert {
	if r.adverts[id] == nil {
		r.adverts[id] = &Advert{Raw: r, ID: id}
	}
	return r.adverts[id]
}

func (r *Raw) scatter(id uint64) *Scatter {
	if r.scatters[id] == nil {
		r.scatters[id] = &Scatter{Raw: r, ID: id}
	}
	return r.scatters[id]
}

// mark says whether bytes may change from here on. The caller holds r.mu.
func (r *Raw) mark(off, n uint64, loose bool) {
	for i := range n {
		r.loose[off+i] = loose
	}
}

// settle makes bytes that peers may have brought the image. The caller holds r.mu.
func (r *Raw) settle(off, n uint64) {
	if marked(r.mem.bytes[off:][:n]) && !r.gone && !r.lost {
		r.w.T.Errorf("read too late: [%d, +%d) of %s has bytes that its source's owner wrote after the source was released", off, n, r.Name)
	}
	copy(r.image[off:][:n], r.mem.bytes[off:])
	r.mark(off, n, false)
}

// scribble writes fresh random bytes; they are the image. The caller holds r.mu.
func (r *Raw) scribble(off, n uint64, mark byte) {
	pattern(r.rng, r.mem.bytes[off:][:n], mark)
	copy(r.image[off:][:n], r.mem.bytes[off:])
	r.mark(off, n, false)
}

// fresh makes bytes ones that were not given back. The caller holds r.mu.
func (r *Raw) fresh(off, n uint64) {
	if marked(r.mem.bytes[off:][:n]) {
		r.scribble(off, n, 0)
	}
}

// check compares the image with the memory and then forgets a difference, so that it is told once.
func (r *Raw) check() {
	r.w.T.Helper()
	if r.lost || bytes.Equal(r.image, r.mem.bytes) {
		return
	}
	n, first := 0, -1
	for i, b := range r.mem.bytes {
		if r.image[i] != b && !r.loose[i] {
			if n++; first < 0 {
				first = i
			}
			r.image[i] = b
		}
	}
	if n > 0 {
		r.w.T.Errorf("changed bytes: %d of raw region %s, the first at %d", n, r.Name, first)
	}
}

// Check compares the image with the memory.
func (r *Raw) Check() {
	r.w.T.Helper()
	r.Locked(r.check)
}

// Kill ends the process, as Client.Kill does.
func (r *Raw) Kill() { r.Node.Engine.ClientGone(r.ID) }

// Locked runs f while no event is noted.
func (r *Raw) Locked(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Unmapped says whether the engine has given the memory up.
func (r *Raw) Unmapped() (gone bool) {
	r.Locked(func() { gone = r.gone })
	return gone
}

// Lost says whether the process's daemon died.
func (r *Raw) Lost() (lost bool) {
	r.Locked(func() { lost = r.lost })
	return lost
}

// unmapped gives every byte an image: nothing may touch the memory any more.
func (r *Raw) unmapped() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost {
		return
	}
	r.check()
	r.gone = true
	r.scribble(0, uint64(len(r.image)), givenBack)
}

// node, name, lose and free implement attached.
func (r *Raw) node() *Node  { return r.Node }
func (r *Raw) name() string { return r.Name }
func (r *Raw) free()        { r.mem.free() }
func (r *Raw) lose() {
	r.Locked(func() {
		r.check()
		r.lost = true
	})
}

// Granted implements xfer.Sink; raw memory has no ranks.
func (r *Raw) Granted(ev wire.GrantedEvent, _ []uint32) {
	r.w.T.Errorf("lease %s on raw memory, which is no instance's rank", ev.LeaseID)
}
