package kvxfer

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/ring"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	// postEntries is how many posts of a client may be out at a time.
	postEntries = 256
	// lookFor is what a post may take, at bytesAMicrosecond, for its end to be looked for before who waits sleeps.
	lookFor           = ring.MaxSpin
	bytesAMicrosecond = 8000
	// glance is how often who sleeps in the ring looks whether his context has ended: the ring does not tell him.
	glance = 20 * time.Millisecond
)

// poster carries the posts of one session, over a ring or the socket, and takes their ends. Whoever waits for an end takes the
// ends of all; of several, one (the leader) looks at the ring and sleeps in it, and the others sleep on channels of their own.
type poster struct {
	conn *connection
	ring *ring.Client // nil: the socket
	why  string       // why the socket

	leads atomic.Bool // somebody is the leader
	spin  ring.Spin   // the leader's

	mu       sync.Mutex
	slots    [postEntries]slot
	free     []uint32
	vacant   chan struct{} // has room for one word: a slot is free
	asleep   int           // who sleeps on a channel
	users    int           // who may touch the ring
	over     *fault.Error  // the session has ended
	unmapped bool
}

// States of a slot.
const (
	slotFree uint64 = iota
	slotOut
	slotEnded
)

// slot is a post's place; its number and turn are the post's cookie.
type slot struct {
	state  atomic.Uint64 // turn<<32 and a state; written under the poster's lock
	turn   uint32        // changes with every post
	until  time.Time     // the post's deadline
	posted wire.Posted
	lost   bool // the session ended before the post did
	left   bool // nobody will ask for the end
	sleeps bool
	wake   chan struct{} // has room for one word; made for the first who sleeps
	timer  *time.Timer   // of who sleeps
}

// enter is called with the lock held.
func (s *slot) enter(state uint64) { s.state.Store(uint64(s.turn)<<32 | state) }

// is says whether the slot is a post's and in that state.
func (s *slot) is(turn uint32, state uint64) bool { return s.state.Load() == uint64(turn)<<32|state }

// posting is the session's poster, which the first caller makes.
func (s *session) posting(ctx context.Context) (*poster, *fault.Error) {
	if !slices.Contains(s.hello.Optional, wire.FeaturePrepared) {
		if fe := s.conn.lostError(); fe != nil {
			return nil, fe
		}
		return nil, fault.New(fault.FeatureRequired, opPrepare, "the daemon is older: it does not know prepared transfers")
	}
	select {
	case s.making <- struct{}{}:
		defer func() { <-s.making }()
	case <-ctx.Done():
		return nil, contextEnded(ctx, opPrepare, "another call waits for the daemon")
	}
	s.mu.Lock()
	o := s.poster
	s.mu.Unlock()
	if o != nil {
		return o, nil
	}
	o = &poster{conn: s.conn, vacant: make(chan struct{}, 1)}
	for i := range uint32(postEntries) {
		o.free = append(o.free, postEntries-1-i)
	}
	if s.client.ringless {
		o.why = "WithoutRing"
	} else if fe := o.openRing(ctx); fe != nil {
		return nil, fe
	}
	s.mu.Lock()
	s.poster = o
	s.mu.Unlock()
	if fe := s.conn.lostError(); fe != nil { // the session may have ended before it knew of the poster
		o.end(fe)
	}
	return o, nil
}

// openRing makes the ring, unless the hardware or the daemon cannot.
func (o *poster) openRing(ctx context.Context) *fault.Error {
	r, err := ring.New(postEntries)
	if err != nil {
		if fe := fault.From(opPrepare, err); fe.Code != fault.NotSupported {
			return fe
		}
		o.why = err.Error()
		return nil
	}
	fds := r.FDs()
	fe, _ := o.conn.request(ctx, request{op: opPrepare, kind: wire.KindRing, body: &wire.Ring{Entries: postEntries}, fds: fds[:]})
	if fe == nil {
		r.Handed()
		o.ring = r
		return nil
	}
	r.Close()
	if fe.Code == fault.NotSupported || fe.Code == fault.AlreadyExists { // the second behind an attempt that was given up
		o.why = fe.Error()
		return nil
	}
	return fe
}

// post sends a post and returns its slot; the caller must leave it by take or forget. full: no slot is free.
func (o *poster) post(p *Prepared, now, until time.Time) (i, turn uint32, full bool, fe *fault.Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over != nil {
		return 0, 0, false, o.over
	}
	if len(o.free) == 0 {
		o.drain()
	}
	if len(o.free) == 0 {
		return 0, 0, true, nil
	}
	i = o.free[len(o.free)-1]
	s := &o.slots[i]
	x := wire.Post{Prepared: p.number, Cookie: uint64(s.turn)<<32 | uint64(i), TimeoutNanos: uint64(until.Sub(now))}
	if o.ring == nil {
		if fe := o.conn.notifyPost(x); fe != nil {
			return 0, 0, false, fe
		}
	} else if !o.ring.Submit(x) {
		o.drain() // places of ends that nobody has read are the ring's
		if !o.ring.Submit(x) {
			return 0, 0, true, nil
		}
	}
	o.free = o.free[:len(o.free)-1]
	s.until, s.lost, s.left = until, false, false
	s.enter(slotOut)
	return i, s.turn, false, nil
}

// drain takes the ring's ends. The lock is held.
func (o *poster) drain() {
	if o.ring == nil || o.unmapped {
		return
	}
	for x, ok := o.ring.Next(); ok; x, ok = o.ring.Next() {
		o.ended(x)
	}
}

// ended takes one end; what is no post's is passed over. The lock is held.
func (o *poster) ended(x wire.Posted) {
	i := uint32(x.Cookie)
	if i >= postEntries {
		return
	}
	s := &o.slots[i]
	if !s.is(uint32(x.Cookie>>32), slotOut) {
		return
	}
	s.posted = x
	o.settle(i)
}

// passOn tells the next who waits for a slot of one that is still free: of several that were made free there was one word.
func (o *poster) passOn() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.free) == 0 {
		return
	}
	select {
	case o.vacant <- struct{}{}:
	default:
	}
}

// settle ends a slot that is out. The lock is held.
func (o *poster) settle(i uint32) {
	s := &o.slots[i]
	s.enter(slotEnded)
	if s.left {
		o.release(i)
	} else {
		o.rouse(s)
	}
}

// rouse wakes who sleeps for a slot. The lock is held.
func (o *poster) rouse(s *slot) {
	if !s.sleeps {
		return
	}
	s.sleeps = false
	o.asleep--
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// release makes a slot free. The lock is held.
func (o *poster) release(i uint32) {
	s := &o.slots[i]
	s.turn++
	s.enter(slotFree)
	o.free = append(o.free, i)
	select {
	case o.vacant <- struct{}{}:
	default:
	}
}

// onPosted takes ends that came over the socket. It runs in the connection's reader.
func (s *session) onPosted(array []byte) error {
	list, err := wire.PostedList(array)
	if err != nil {
		return err
	}
	s.mu.Lock()
	o := s.poster
	s.mu.Unlock()
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, x := range list {
		o.ended(x)
	}
	return nil
}

// endPosts ends every post of a lost session.
func (s *session) endPosts(fe *fault.Error) {
	s.mu.Lock()
	o := s.poster
	s.mu.Unlock()
	if o != nil {
		o.end(fe)
	}
}

func (o *poster) end(fe *fault.Error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.over != nil {
		return
	}
	o.drain() // ends that were told before count
	o.over = fe
	for i := range uint32(postEntries) {
		if s := &o.slots[i]; s.is(s.turn, slotOut) {
			s.lost = true
			o.settle(i)
		}
	}
	if o.ring != nil {
		o.ring.Wake()
	}
	o.unmap()
}

// unmap gives the ring back once the session has ended and nobody is in it. The lock is held.
func (o *poster) unmap() {
	if o.over != nil && o.users == 0 && o.ring != nil && !o.unmapped {
		o.unmapped = true
		o.ring.Close()
	}
}
