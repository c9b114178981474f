package shm

import (
	"net"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

// target is the reached side of a session.
type target struct {
	session
	secret secret

	// Under the session's lock.
	reserved bool   // a connection, or an initiator of this process, has the session's place
	local    *local // that initiator; then there are neither pages nor a socket
	lastKey  rdma.Key
	windows  map[rdma.Key]*window // the open ones
	slots    []uint32             // those that are free, the one that has been free for longest first
	results  []result
	answers  []answer
	load     int       // tasks, results and answers that are not done with: a bound on what a peer makes this node keep
	fences   int       // calls that are under way: they use the pages
	room     sync.Cond // load or fences have become less, or the session is over

	in    *inbound // the WRITE whose frames are coming; of the reader alone, as is seq
	seq   uint64
	descs []desc
}

// maxLoad is where the reader stops taking frames.
const maxLoad = 1024

// window is a permission that this node has granted, and the gate of its memory.
type window struct {
	gate.Gate
	key    rdma.Key
	region *region
	access rdma.Access
	bounds rdma.Bounds

	// Of a READ window, under the session's lock.
	published bool // it has a slot
	ending    bool // and gets none any more
	slot      uint32
	word      uint64
	deadline  rdma.Instant
	timer     *time.Timer // nil: no deadline
}

func (w *window) enter() fault.Code { return w.Enter() }
func (w *window) leave()            { w.Leave() }

// allows reports whether every range lies in the region and in the bounds.
func (w *window) allows(descs []desc) bool {
	for _, d := range descs {
		if !w.region.access.holds(d.remote, d.len) || !w.bounds.Allows(d.remote, d.len) {
			return false
		}
	}
	return true
}

// Accept makes the target side of a session; the parameters hold its secret.
func (p *Provider) Accept(id rdma.SessionID) (rdma.Target, []byte, error) {
	t := &target{secret: newSecret(), windows: map[rdma.Key]*window{}}
	t.init(p, id, "target")
	t.room.L = &t.mu
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, errClosed("accept")
	}
	if p.targets[id] != nil {
		return nil, nil, fault.Invalid("accept", "id", "session %d exists; want a number never used before", id)
	}
	p.targets[id] = t
	par := params{slots: windowSlots, session: id, secret: t.secret, path: p.path}
	return t, par.bytes(), nil
}

// reserve takes the session's only place. begin must follow.
func (t *target) reserve() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 {
		return errClosed("hello")
	}
	if t.reserved {
		return fault.New(fault.AlreadyExists, "hello", "the session has its connection")
	}
	t.reserved = true
	t.crew.join(2)
	return nil
}

// begin sets a session to work whose hello was answered, or ends it when that failed: the peer cannot know.
func (t *target) begin(conn *net.UnixConn, pages [2]*page, err error) error {
	t.mu.Lock()
	if err == nil && t.ended != 0 {
		err = errClosed("hello")
	}
	if err == nil {
		err = t.attach(conn, pages[0], pages[1], t.message)
	}
	if err == nil {
		for k := range pages[0].slots {
			t.slots = append(t.slots, uint32(k))
		}
		for _, w := range t.windows { // granted before the peer came
			if w.access == rdma.AccessRead && !w.ending {
				t.publish(w)
			}
		}
	}
	t.mu.Unlock()
	if err != nil {
		pages[0].close()
		pages[1].close()
		t.fail(err)
		t.crew.leave()
		t.crew.leave()
		t.events.bring()
		return err
	}
	t.serve(func() error { return t.receive(t.handle) }, t.fail)
	return nil
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
	if w.Access == rdma.AccessRead && t.local == nil && t.readWindows() >= windowSlots {
		return 0, fault.New(fault.ResourceExhausted, "grant", "the session has its %d windows for reading", windowSlots)
	}
	t.lastKey++
	own := &window{key: t.lastKey, region: r, access: w.Access, bounds: w.Bounds, deadline: w.Deadline}
	own.Init(t.p.opt.Clock, w.Deadline)
	t.windows[own.key] = own
	if own.access == rdma.AccessRead && t.page != nil {
		t.publish(own)
	}
	return own.key, nil
}

func (t *target) readWindows() int {
	if t.page != nil {
		return windowSlots - len(t.slots)
	}
	n := 0
	for _, w := range t.windows {
		if w.access == rdma.AccessRead {
			n++
		}
	}
	return n
}

func (t *target) window(k rdma.Key) *window {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.windows[k]
}

// Extend replaces a window's deadline.
func (t *target) Extend(k rdma.Key, deadline rdma.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.windows[k]
	if w == nil || !w.Extend(deadline) {
		return fault.New(fault.StaleKey, "extend", "window %d", k)
	}
	w.deadline = deadline
	if w.published {
		t.republish(w)
	}
	return nil
}

// Fence ends a window. A window leaves the table only when it is shut, so that a second Fence waits too.
func (t *target) Fence(k rdma.Key) error {
	t.mu.Lock()
	w := t.windows[k]
	if w != nil {
		t.fences++
	}
	t.mu.Unlock()
	if w == nil {
		return nil
	}
	w.Shut()
	if gate.Fences {
		t.unpublish(w)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.fences--
	t.room.Broadcast()
	return nil
}

func (t *target) fenceRegion(r *region) {
	t.mu.Lock()
	var keys []rdma.Key
	for k, w := range t.windows {
		if r == nil || w.region == r {
			keys = append(keys, k)
		}
	}
	t.mu.Unlock()
	for _, k := range keys {
		_ = t.Fence(k)
	}
}

// end ends the session; windows stay. why is Closed when this side wants it.
func (t *target) end(why fault.Code, cause error) {
	t.mu.Lock()
	if !t.shut(why) {
		t.mu.Unlock()
		return
	}
	if why != fault.Closed {
		t.events.add(rdma.Event{Kind: rdma.EventDown, Status: why, Session: t.id})
	}
	t.room.Broadcast()
	conn, inside := t.conn, t.local
	t.mu.Unlock()
	if inside != nil {
		inside.end(fault.PeerLost)
		inside.events.hand()
	}
	if conn != nil {
		_ = conn.Close()
	}
	t.events.letGo()
	if why != fault.Closed {
		t.p.opt.Logger.Info("session down", "role", t.role, "session", uint64(t.id), "code", why.String(), "error", cause)
	}
}

func (t *target) fail(err error) { t.end(rdma.DownStatus(err), err) }

// Close fences all windows and returns when no goroutine or mapping of the session is left.
func (t *target) Close() error {
	t.end(fault.Closed, nil)
	t.fenceRegion(nil)
	t.p.pool.drop(&t.events)
	t.crew.end()
	t.mu.Lock()
	for t.fences > 0 {
		t.room.Wait()
	}
	t.mu.Unlock()
	t.p.mu.Lock()
	if t.p.targets[t.id] == t {
		delete(t.p.targets, t.id)
	}
	t.p.mu.Unlock()
	t.dispose()
	return nil
}
