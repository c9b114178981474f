package tcp

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

// target is the reached side of a session. Lock order: mu, then a window's gate.
type target struct {
	p      *Provider
	id     rdma.SessionID
	secret secret
	crew   crew // lane goroutines, and lanes between their hello and these
	box    outbox

	mu      sync.RWMutex
	ended   fault.Code // why the session is over; 0: it is not
	lastKey rdma.Key
	windows map[rdma.Key]*window // the open ones
	lanes   []*targetLane        // by index; nil: not there yet
}

// Accept makes the target side of a session; the parameters hold its secret.
func (p *Provider) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	t := &target{p: p, id: id, secret: newSecret(), windows: map[rdma.Key]*window{}, lanes: make([]*targetLane, p.opt.Lanes)}
	t.crew.init()
	t.box.init(p)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, errClosed("accept")
	}
	if p.targets[id] != nil {
		return nil, nil, fault.Invalid("accept", "id", "session %d exists; want a number never used before", id)
	}
	p.targets[id] = t
	par := params{lanes: uint16(p.opt.Lanes), tls: p.opt.TLSLanes, session: id, secret: t.secret}
	return t, par.bytes(), nil
}

// reserve gives a connection its place. begin must follow.
func (t *target) reserve(index int, c *carrier) (*targetLane, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 {
		return nil, errClosed("lane")
	}
	if index >= len(t.lanes) {
		return nil, violation("lane %d of %d", index, len(t.lanes))
	}
	if t.lanes[index] != nil {
		return nil, fault.New(fault.AlreadyExists, "lane", "lane %d is there", index)
	}
	l := newTargetLane(t)
	if err := t.p.setup(&l.lane, index, c); err != nil {
		return nil, err
	}
	l.rx.ahead = aheadTarget
	t.lanes[index] = l
	t.crew.join(2) // not yet ended
	return l, nil
}

// attach takes a reserved lane out of package net, unless the session has ended: end closes what it finds.
func (t *target) attach(l *targetLane, c *carrier) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 {
		return errClosed("lane")
	}
	return t.p.attach(&l.lane, c, false)
}

// begin sets a reserved lane to work, or ends the session when its hello failed after all: the peer cannot tell
// which lanes it has then.
func (t *target) begin(l *targetLane, err error) {
	if err != nil {
		t.fail(err)
		l.unuse()
		l.unuse()
		t.crew.leave()
		t.crew.leave()
		return
	}
	go l.read()
	go l.write()
}

// Grant opens a window.
func (t *target) Grant(w rdma.Window) (rdma.Key, error) {
	if err := w.Check(); err != nil {
		return 0, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.ended {
	case 0:
	case fault.Closed:
		return 0, errClosed("grant")
	default:
		return 0, fault.New(fault.PeerLost, "grant", "the session has ended: %s", t.ended)
	}
	r, err := t.p.ours("grant", w.Region)
	if err != nil {
		return 0, err
	}
	t.lastKey++
	own := &window{key: t.lastKey, region: r, access: w.Access, bounds: w.Bounds}
	own.Init(t.p.opt.Clock, w.Deadline)
	t.windows[own.key] = own
	return own.key, nil
}

func (t *target) window(k rdma.Key) *window {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.windows[k]
}

// Extend replaces a window's deadline.
func (t *target) Extend(k rdma.Key, deadline rdma.Instant) error {
	if w := t.window(k); w != nil && w.Extend(deadline) {
		return nil
	}
	return fault.New(fault.StaleKey, "extend", "window %d", k)
}

// Fence ends a window. A window leaves the table only when it is shut, so that a second Fence waits too.
func (t *target) Fence(k rdma.Key) error {
	w := t.window(k)
	if w == nil {
		return nil
	}
	w.Shut()
	if !gate.Fences {
		return nil
	}
	t.mu.Lock()
	delete(t.windows, k)
	t.mu.Unlock()
	return nil
}

func (t *target) fenceRegion(r *region) {
	t.mu.RLock()
	var keys []rdma.Key
	for k, w := range t.windows {
		if r == nil || w.region == r {
			keys = append(keys, k)
		}
	}
	t.mu.RUnlock()
	for _, k := range keys {
		_ = t.Fence(k)
	}
}

// end ends the session; windows stay. why is Closed when this side wants it.
func (t *target) end(why fault.Code, cause error) {
	t.mu.Lock()
	if t.ended != 0 {
		t.mu.Unlock()
		return
	}
	t.ended = why
	if why != fault.Closed {
		t.box.add(rdma.Event{Kind: rdma.EventDown, Status: why, Session: t.id})
	}
	t.mu.Unlock()
	// ended is set: no lane is added any more.
	for _, l := range t.lanes {
		if l != nil {
			l.stop()
			l.shut()
		}
	}
	t.box.letGo()
	t.box.hand()
	if why != fault.Closed {
		t.p.opt.Logger.Info("session down", "role", "target", "session", uint64(t.id), "code", why.String(), "error", cause)
	}
}

// fail ends the session because a lane did.
func (t *target) fail(err error) {
	t.end(rdma.DownStatus(err), err)
}

// Close fences all windows and returns when no goroutine of the session is left.
func (t *target) Close() error {
	t.end(fault.Closed, nil)
	t.fenceRegion(nil)
	t.crew.end()
	t.p.mu.Lock()
	if t.p.targets[t.id] == t {
		delete(t.p.targets, t.id)
	}
	t.p.mu.Unlock()
	return nil
}
