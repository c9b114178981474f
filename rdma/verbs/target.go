package verbs

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

// maxLanes bounds what one session may ask for.
const maxLanes = 1024

// target is the reached side of a session. Its lanes come with the initiator's laneOpen.
//
// Lock order: mu, then the device's. Device calls that only queue or that end a queue pair are made under mu: they are bounded.
type target struct {
	p      *Provider
	id     rdma.SessionID
	secret secret

	mu      sync.Mutex
	ended   fault.Code // why the session is over; 0: it is not
	closing bool
	side    *side // nil until the initiator is there
	lastKey rdma.Key
	windows map[rdma.Key]*window // not fenced yet
	lanes   []*targetLane        // by number; nil: never opened
	entries []entry              // scratch of completed
	out     []rdma.Event
	broken  error // a queue pair could not be ended: nothing on this session's lanes can be promised
}

// assembly is a WRITE that came in parts.
type assembly struct {
	have  [maxParts / 8]byte
	left  int
	bytes uint64
}

// Accept makes the target side of a session; the parameters hold its secret and this node's ports.
func (p *Provider) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	t := &target{p: p, id: id, secret: newSecret(), windows: map[rdma.Key]*window{}}
	far, err := p.describeRails()
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, errClosed("accept")
	}
	if p.targets[id] != nil {
		return nil, nil, fault.Invalid("accept", "id", "session %d exists; want a number never used before", id)
	}
	p.targets[id] = t
	par := params{tls: p.opt.TLS != nil, session: id, secret: t.secret, rails: far}
	return t, par.bytes(), nil
}

// attach gives a session its side channel.
func (t *target) attach(s *side) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 {
		return errClosed("side channel")
	}
	if t.side != nil {
		return fault.New(fault.AlreadyExists, "side channel", "session %d has one", t.id)
	}
	t.side = s
	return nil
}

// handle is one message of the initiator's.
func (t *target) handle(m message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 {
		return errClosed("side channel")
	}
	switch m := m.(type) {
	case *laneOpen:
		return t.openLane(m)
	case *laneShut:
		l := t.lane(m.laneRef)
		if l != nil {
			t.endLane(l, nil)
		} else if int(m.lane) < len(t.lanes) && t.lanes[m.lane] != nil && m.gen <= t.lanes[m.lane].gen {
			if t.lanes[m.lane].gen == m.gen {
				t.lanes[m.lane].opening = false
			}
			t.side.send(&laneDead{laneRef: m.laneRef, taken: t.lanes[m.lane].taken}) // it had ended before
		} else {
			return violation("the end of lane %d, which was not opened", m.lane)
		}
	case *recordsMsg:
		if err := t.told(m); err != nil {
			return err
		}
	case *cleanMsg:
		if w := t.windows[m.key]; w != nil && w.fence != nil {
			w.fence.clean = m
			w.fence.stir()
		}
	case *queryMsg:
		switch w := t.windows[m.key]; {
		case w == nil || w.fence != nil && gate.Fences:
			t.side.send(&revokeMsg{m.key})
		case w.announced:
			t.announce(w)
		}
	default:
		return violation("a target's message from an initiator")
	}
	t.flush()
	return nil
}

// lost is the end of the side channel. The initiator can post nothing more that counts, so its queue pairs end with it; the
// windows stay as they are until somebody fences them.
func (t *target) lost(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 {
		return
	}
	t.ended = rdma.DownStatus(err)
	t.endLanes()
	t.out = append(t.out, rdma.Event{Kind: rdma.EventDown, Status: t.ended, Session: t.id})
	t.flush()
	t.p.opt.Logger.Info("session down", "role", "target", "session", uint64(t.id), "code", t.ended.String(), "error", err)
}

// endLanes ends every queue pair of the session.
func (t *target) endLanes() {
	for _, l := range t.lanes {
		if l != nil && l.up {
			t.endLane(l, nil)
		}
	}
}

// flush hands this turn's events on. mu is held, so that nothing overtakes them.
func (t *target) flush() {
	t.p.events.Push(t.out...)
	t.out = t.out[:0]
}

// Close ends all queue pairs, which fences all windows, and then the session.
func (t *target) Close() error {
	t.mu.Lock()
	if t.closing {
		defer t.mu.Unlock()
		return t.broken
	}
	t.closing = true
	if t.ended == 0 {
		t.ended = fault.Closed
	}
	t.endLanes()
	for k, w := range t.windows {
		t.drop(w)
		delete(t.windows, k)
	}
	err, s := t.broken, t.side
	t.mu.Unlock()
	if s != nil {
		s.close()
		s.wait()
	}
	t.p.mu.Lock()
	if t.p.targets[t.id] == t {
		delete(t.p.targets, t.id)
	}
	t.p.mu.Unlock()
	return err
}
