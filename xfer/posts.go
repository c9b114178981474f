package xfer

import (
	"slices"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// maxReady is how many ranges a prepared transfer keeps worked out, 24 bytes each; longer lists are worked out for each
// post, an operation at a time.
const maxReady = 1 << 16

// maxAttached is the largest list, in bytes, whose completions the posting thread fetches itself. While larger ones move, a
// thread that looks takes a processor from the copies.
const maxAttached = 512 << 10

type postsState uint8

const (
	postsBinding postsState = iota
	postsOpen
	postsFinishing // the client wants the good end
	postsEnding    // the transfer fails or was cancelled
	postsOver      // the machine has its pieces back
)

// posts runs the posts of a prepared transfer. Its lock comes behind the transfer's and before the out queue's.
type posts struct {
	p *transfer

	mu       sync.Mutex
	state    postsState
	draining bool
	tokens   []outPart // what the machine counts as outstanding until the end
	handed   uint64

	progress rdma.Progressor // nil: completions come by themselves
	mover    rdma.Mover      // nil: posts go through the link's queue
	ops      []rdma.Op       // mover: the list
	sum      uint64          // bytes of the list
	pieces   uint64

	moving   int // posts inside of mover
	running  []*post
	free     []*post
	rounds   uint64 // posts that succeeded
	total    uint64 // bytes that they moved
	wrote    bool
	code     fault.Code // why it ends; 0: it does not, or well
	said     bool       // the transfer's result is known: failed posts end with its code
	unsaid   []unsaid
	timer    func() bool
	timerAt  rdma.Instant
	prepared wire.PreparedEvent
}

// post is one of them, in the link's queue.
type post struct {
	s               *posts
	g               *Posting
	cookie          uint64
	begun, deadline rdma.Instant
	left            uint64 // pieces that have not ended
	moved           uint64 // bytes
	code            fault.Code
	wrote           bool

	// Under the lock of the link's queue; see outpost.go.
	sender
	token    int    // the next operation is of this token,
	skip     uint32 // behind so many of its pieces
	back     []outPart
	unposted uint64 // cost
}

// unsaid is a failed post whose end is told with the transfer's.
type unsaid struct {
	g      *Posting
	posted wire.Posted
}

func newPosts(p *transfer) *posts { return &posts{p: p} }

// token takes pieces that the machine wants posted: they stay outstanding until the transfer ends. With the last one posts may
// begin. The caller holds the transfer's lock.
func (s *posts) token(layer, first, count uint32) {
	s.mu.Lock()
	s.tokens = append(s.tokens, outPart{layer: layer, first: first, count: count})
	s.handed += uint64(count)
	whole := s.handed == s.p.m.Pieces()
	if whole {
		s.open()
	}
	s.mu.Unlock()
	if whole {
		s.p.client.sink.Prepared(s.prepared)
	}
}

func (s *posts) open() {
	p := s.p
	s.state, s.pieces = postsOpen, s.handed
	init := p.ls.out.init
	ranges, ops := 0, 0
	var scratch []rdma.Range
	for _, t := range s.tokens {
		for first := t.first; first < t.first+t.count; first += p.plan.most() {
			s.sum += p.plan.bytes(t.layer, first, min(p.plan.most(), t.first+t.count-first))
			ops++
		}
	}
	if m, ok := init.(rdma.Mover); ok {
		for _, t := range s.tokens {
			for first := t.first; first < t.first+t.count && ranges <= maxReady; first += p.plan.most() {
				n := min(p.plan.most(), t.first+t.count-first)
				scratch = p.plan.append(scratch[:0], t.layer, first, n)
				ranges += len(scratch)
				s.ops = append(s.ops, rdma.Op{Kind: p.opKind(), Local: p.region.inner[p.ls.provider], Remote: p.key,
					Ranges: slices.Clone(scratch), Tag: p.plan.tag(t.layer, first, n)})
			}
		}
		if ranges <= maxReady {
			s.mover = m
		} else {
			s.ops = nil
		}
	}
	if s.sum <= maxAttached {
		s.progress, _ = init.(rdma.Progressor)
	}
	provider, reason := p.way()
	s.prepared = wire.PreparedEvent{Transfer: p.id, Provider: provider, Reason: reason, Operations: uint32(ops), Bytes: s.sum}
}

// begin runs a post for g. It ends by g's done, perhaps before begin returns; false: it runs on.
func (s *posts) begin(g *Posting, x wire.Post, now rdma.Instant) (ended bool) {
	s.mu.Lock()
	if s.state != postsOpen || s.draining {
		code := s.refusal()
		s.mu.Unlock()
		g.done(wire.Posted{Cookie: x.Cookie, Code: uint32(code)})
		return true
	}
	deadline := now + rdma.Instant(x.TimeoutNanos)
	if s.mover != nil {
		s.moving++
		counted := s.rounds > 0
		s.mu.Unlock()
		s.move(g, x.Cookie, now, deadline, counted)
		return true
	}
	r := s.take()
	*r = post{s: s, g: g, cookie: x.Cookie, begun: now, deadline: deadline, left: s.pieces, sender: sender{src: r}, back: r.back[:0], unposted: s.p.plan.size()}
	s.running = append(s.running, r)
	s.arm(deadline)
	s.p.ls.out.addPost(r) // under the lock, so that stop finds either no post or all of its parts
	s.mu.Unlock()
	return false
}

// holdsUp says whether a post keeps its thread for longer than whoever has attached to a session may look away.
func (s *posts) holdsUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mover != nil && s.sum > maxAttached
}

// refusal is why no post begins. The caller holds s.mu.
func (s *posts) refusal() fault.Code {
	switch {
	case s.code != 0:
		return s.code
	case s.draining:
		return fault.Draining
	case s.state == postsBinding:
		return fault.InvalidArgument
	}
	return fault.Closed
}

// moveBatch is how many operations are moved between two looks at the clock and at the transfer's state: 16 MiB.
const moveBatch = 16

// move runs a post by copying; counted: another has moved the whole list before. The caller has counted it in s.moving.
func (s *posts) move(g *Posting, cookie uint64, begun, deadline rdma.Instant, counted bool) {
	var code fault.Code
	var done uint64
	var quiet rdma.QuietMover // the target has counted every piece: telling it once more would wake a thread
	if counted {
		quiet, _ = s.mover.(rdma.QuietMover)
	}
	for ops := s.ops; len(ops) > 0 && code == 0; {
		n := min(len(ops), moveBatch)
		if len(ops) < len(s.ops) { // not the first
			if s.p.e.o.Clock.Now() >= deadline {
				code = fault.DeadlineExceeded
				break
			}
			s.mu.Lock()
			if s.state == postsEnding {
				code = s.code
			}
			s.mu.Unlock()
			if code != 0 {
				break
			}
		}
		var ok int
		if quiet != nil {
			ok, code = quiet.MoveQuiet(ops[:n])
		} else {
			ok, code = s.mover.Move(ops[:n])
		}
		for i := range ops[:ok] {
			done += ops[i].Bytes()
		}
		ops = ops[n:]
	}
	now := s.p.e.o.Clock.Now()
	s.p.ls.metrics.posted(s.p, done, quiet != nil)
	s.mu.Lock()
	s.moving--
	s.over(g, wire.Posted{Cookie: cookie, Code: uint32(code), Bytes: done, Nanos: uint64(now - begun)}, done > 0 || code != 0)
}

// over ends a post: it is told now, or with the transfer's result when it failed. The caller holds s.mu, which is given up.
func (s *posts) over(g *Posting, x wire.Posted, wrote bool) {
	code := fault.Code(x.Code)
	s.total += x.Bytes
	s.wrote = s.wrote || wrote
	tell := true
	switch {
	case code == 0:
		s.rounds++
	default:
		if wrote {
			x.Flags |= wire.PostedWrote
		}
		if s.said {
			x.Code = uint32(s.code)
		} else {
			tell = false
			s.unsaid = append(s.unsaid, unsaid{g, x})
		}
	}
	failed := code != 0 && (s.state == postsOpen || s.state == postsFinishing)
	settle := !failed && s.state != postsOpen && s.idle()
	drained := !failed && s.draining && s.state == postsOpen && s.idle()
	s.mu.Unlock()
	if tell {
		g.done(x)
	}
	switch {
	case failed:
		s.p.step(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: code})
	case settle:
		s.settle()
	case drained:
		s.p.cancel(fault.Draining)
	}
}

// idle says whether nothing of any post touches memory. The caller holds s.mu.
func (s *posts) idle() bool { return s.moving == 0 && len(s.running) == 0 }

// partEnded takes the end of pieces of a post that went through the queue. No lock of the queue is held.
func (r *post) partEnded(part outPart, code fault.Code, wrote bool) {
	s := r.s
	s.mu.Lock()
	r.left -= min(r.left, uint64(part.count))
	r.wrote = r.wrote || wrote || code == 0
	if code == 0 {
		r.moved += s.p.plan.bytes(part.layer, part.first, part.count)
	} else if r.code == 0 {
		r.code = code
	}
	if r.left > 0 {
		stop := code != 0 && (s.state == postsOpen || s.state == postsFinishing)
		s.mu.Unlock()
		if stop { // its other operations need not be waited for
			s.p.step(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: code})
		}
		return
	}
	i := slices.Index(s.running, r)
	s.running = slices.Delete(s.running, i, i+1)
	g, wroteAny := r.g, r.wrote
	x := wire.Posted{Cookie: r.cookie, Code: uint32(r.code), Bytes: r.moved, Nanos: uint64(s.p.e.o.Clock.Now() - r.begun)}
	s.free = append(s.free, r)
	s.over(g, x, wroteAny)
}

// take gives a post to fill. The caller holds s.mu.
func (s *posts) take() *post {
	if n := len(s.free); n > 0 {
		r := s.free[n-1]
		s.free = s.free[:n-1]
		return r
	}
	return &post{}
}

// arm sets the timer to a post's deadline where none is earlier. There is one timer a list, not one a post. The caller
// holds s.mu.
func (s *posts) arm(deadline rdma.Instant) {
	if s.timerAt != 0 && s.timerAt <= deadline {
		return
	}
	if s.timer != nil {
		s.timer()
	}
	s.timerAt = deadline
	s.timer = s.p.e.o.Clock.AfterFunc(deadline, s.tick)
}

func (s *posts) tick() {
	now := s.p.e.o.Clock.Now()
	s.mu.Lock()
	s.timerAt = 0
	late := false
	for _, r := range s.running {
		if late = late || now >= r.deadline; r.deadline > now {
			s.arm(r.deadline)
		}
	}
	s.mu.Unlock()
	if late {
		s.p.step(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.DeadlineExceeded})
	}
}

// finish begins the good end; events go to the machine now, or later when there are none. false: nothing was ever posted. The
// caller holds the transfer's lock.
func (s *posts) finish() (events []protocol.TransferEvent, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.state == postsBinding, s.state == postsOpen && s.rounds == 0 && s.idle():
		return nil, false
	case s.state != postsOpen:
		return nil, true
	}
	s.state = postsFinishing
	if s.idle() {
		return s.back(), true
	}
	return nil, true
}

// drain refuses further posts; true: none runs.
func (s *posts) drain() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	return s.state == postsBinding || s.state == postsOpen && s.idle()
}

// stop takes the machine's word that everything is cancelled with code; events are the machine's pieces when nothing has to be
// waited for. The caller holds the transfer's lock.
func (s *posts) stop(code fault.Code) []protocol.TransferEvent {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == postsOver {
		return nil
	}
	s.state, s.code = postsEnding, code
	if s.idle() {
		return s.back()
	}
	for _, r := range s.running {
		parts := s.p.ls.out.cancelPost(r)
		if len(parts) == 0 {
			continue
		}
		s.p.e.wg.Go(func() { // which may need the transfer's lock
			for _, x := range parts {
				r.partEnded(x, code, false)
			}
		})
	}
	return nil
}

// settle gives the machine its pieces back once nothing of them touches memory.
func (s *posts) settle() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	s.mu.Lock()
	var events []protocol.TransferEvent
	if s.state != postsOver && s.state != postsOpen && s.idle() {
		if s.state == postsFinishing && s.rounds == 0 {
			s.mu.Unlock()
			s.p.run(protocol.TransferEvent{Kind: protocol.TransferCancel, Code: fault.Cancelled})
			return
		}
		events = s.back()
	}
	s.mu.Unlock()
	s.p.run(events...)
}

// back makes the events that end the machine's pieces. The caller holds both locks.
func (s *posts) back() (events []protocol.TransferEvent) {
	code := s.code
	well := s.state == postsFinishing
	if well {
		code = 0
	}
	s.state = postsOver
	s.p.bytes = s.total
	for _, t := range s.tokens {
		events = append(events, protocol.TransferEvent{Kind: protocol.TransferCompletion, Layer: t.layer, First: t.first, Count: t.count, Code: code, Wrote: s.wrote})
	}
	if well {
		events = append(events, protocol.TransferEvent{Kind: protocol.TransferFinish})
	}
	return events
}

// told says the transfer's result, which failed posts end with.
func (s *posts) told(code fault.Code) {
	s.mu.Lock()
	if s.timer != nil {
		s.timer()
	}
	if code == 0 {
		code = fault.Closed // for posts that come too late
	}
	s.said, s.code = true, code
	late := s.unsaid
	s.unsaid = nil
	s.mu.Unlock()
	for _, u := range late {
		u.posted.Code = uint32(code)
		u.g.done(u.posted)
	}
}

// count is how many posts ended well and how many run.
func (s *posts) count() (rounds uint64, running int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rounds, s.moving + len(s.running)
}
