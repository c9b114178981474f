package fabrictest_test

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

const refChunk = 32 << 10

// link is a session's wire: operations queue in it, two workers carry them, chunk by chunk.
type link struct {
	i *refInitiator
	t *refTarget

	mu      sync.Mutex
	cond    *sync.Cond
	queue   []*refOp
	stalled bool
	dead    bool
}

func (l *link) stall() (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stalled = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.stalled = false
		l.cond.Broadcast()
	}
}

func (l *link) kill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dead = true
	l.cond.Broadcast()
}

func (l *link) cut() {
	l.kill()
	l.i.down()
	l.t.down()
}

// pass is where bytes wait while the wire is stalled; false when it is gone.
func (l *link) pass() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.stalled && !l.dead {
		l.cond.Wait()
	}
	return !l.dead || l.i.p.defect == "no-fence"
}

func (l *link) work() {
	buf := make([]byte, refChunk)
	for n := 0; ; n++ {
		l.mu.Lock()
		for len(l.queue) == 0 && (!l.dead || l.i.p.defect == "leak-goroutine") {
			l.cond.Wait()
		}
		if l.dead {
			l.mu.Unlock()
			return
		}
		o := l.queue[0]
		l.queue = l.queue[1:]
		l.mu.Unlock()
		if !l.pass() {
			return
		}
		l.run(o, buf)
		if n%16 == 0 {
			time.Sleep(20 * time.Microsecond) // lets operations pile up
		}
	}
}

// run carries one operation. The target's part stands behind pass, the initiator's behind o.touch.
func (l *link) run(o *refOp, buf []byte) {
	defect := l.i.p.defect
	w, code := l.t.open(o)
	if code != 0 {
		o.end(code, false)
		return
	}
	remote := w.region.bytes
	arrival := rdma.Event{Kind: rdma.EventArrival, Session: l.t.id, Bytes: o.bytes, Key: o.key, Tag: o.tag}
	if o.kind == rdma.OpWrite && defect == "early-arrival" {
		l.t.p.push(arrival)
	}
	if o.kind == rdma.OpWrite && defect == "early-success" {
		o.end(0, true)
	}
	wrote := false
	for _, r := range o.ranges {
		if defect == "bounds-late" && !w.allows(r) {
			o.end(fault.OutOfBounds, wrote)
			return
		}
		for done := uint64(0); done < r.Len; {
			n := min(refChunk, r.Len-done)
			b := buf[:n]
			here := o.local.bytes[r.Local+done:][:n]
			there := remote[r.Remote+done:][:n]
			done += n
			if o.kind == rdma.OpWrite {
				if !o.touch(func() { slowCopy(b, here) }, "source-after-completion", "early-success") || !l.pass() {
					return
				}
				code = w.touch(o.kind, func() { slowCopy(there, b) })
				wrote = true
			} else {
				code = w.touch(o.kind, func() { slowCopy(b, there) })
				if !l.pass() {
					return
				}
				if code == 0 && !o.touch(func() { slowCopy(here, b) }, "late-read") {
					return
				}
			}
			if code != 0 {
				o.end(code, wrote)
				return
			}
		}
	}
	if o.kind == rdma.OpWrite && defect != "early-arrival" {
		l.t.p.push(arrival)
	}
	o.end(0, wrote)
}

type refWindow struct {
	region   *refRegion
	access   rdma.Access
	bounds   rdma.Bounds
	deadline atomic.Int64
	p        *refProvider

	mu     sync.RWMutex // held for reading while bytes are copied
	fenced atomic.Bool
}

// touch runs one chunk's copy if the window permits it at this moment.
func (w *refWindow) touch(kind rdma.OpKind, f func()) fault.Code {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.fenced.Load() && (kind != rdma.OpRead || w.p.defect != "read-not-fenced") {
		return fault.StaleKey
	}
	if w.p.defect != "deadline-at-start" && w.expired() {
		return fault.LeaseExpired
	}
	f()
	return 0
}

func (w *refWindow) expired() bool {
	d := w.deadline.Load()
	return d != 0 && int64(w.p.clock.Now()) >= d && w.p.defect != "deadline-timer"
}

func (w *refWindow) allows(r rdma.Range) bool {
	n := uint64(len(w.region.bytes))
	inside := r.Remote <= n && r.Len <= n-r.Remote
	return inside && (w.p.defect == "no-bounds" || w.bounds.Allows(r.Remote, r.Len))
}

func (w *refWindow) fence() {
	switch w.p.defect {
	case "no-fence":
	case "no-fence-wait":
		w.fenced.Store(true)
	default:
		w.mu.Lock()
		w.fenced.Store(true)
		w.mu.Unlock()
	}
}

type refTarget struct {
	p  *refProvider
	id rdma.SessionID

	mu      sync.Mutex
	link    *link
	windows map[rdma.Key]*refWindow // fenced ones stay, so that keys stay unique
	keys    rdma.Key
	ended   bool
}

// open checks an operation before any of its bytes moves.
func (t *refTarget) open(o *refOp) (*refWindow, fault.Code) {
	t.mu.Lock()
	w := t.windows[o.key]
	t.mu.Unlock()
	switch {
	case w == nil, w.fenced.Load() && t.p.defect != "stale-key":
		return nil, fault.StaleKey
	case w.access != rdma.Access(o.kind) && t.p.defect != "any-access":
		return nil, fault.PermissionDenied
	case w.expired():
		return nil, fault.LeaseExpired
	}
	if t.p.defect == "stale-key" && w.fenced.Load() {
		w = &refWindow{region: w.region, access: w.access, bounds: w.bounds, p: w.p}
	}
	for _, r := range o.ranges {
		if r.Len > 0 && t.p.defect != "bounds-late" && !w.allows(r) {
			return nil, fault.OutOfBounds
		}
	}
	return w, 0
}

func (t *refTarget) Grant(g rdma.Window) (rdma.Key, error) {
	r, ok := g.Region.(*refRegion)
	switch {
	case !ok || r.p != t.p:
		return 0, fault.Invalid("grant", "region", "must be registered with this provider")
	case g.Access != rdma.AccessRead && g.Access != rdma.AccessWrite:
		return 0, fault.Invalid("grant", "access", "must be read or write")
	case g.Bounds == nil:
		return 0, fault.Invalid("grant", "bounds", "must be given")
	}
	t.p.mu.Lock()
	defer t.p.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || r.closed {
		return 0, fault.New(fault.Closed, "grant", "the session or the region is closed")
	}
	w := &refWindow{region: r, access: g.Access, bounds: g.Bounds, p: t.p}
	w.deadline.Store(int64(g.Deadline))
	if t.p.defect == "deadline-timer" && g.Deadline != 0 {
		time.AfterFunc(time.Duration(g.Deadline-t.p.clock.Now()), w.fence)
	}
	t.keys++
	t.windows[t.keys] = w
	return t.keys, nil
}

func (t *refTarget) Extend(k rdma.Key, d rdma.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.windows[k]
	if w == nil || w.fenced.Load() {
		return fault.New(fault.StaleKey, "extend", "key %d", k)
	}
	w.deadline.Store(int64(d))
	return nil
}

func (t *refTarget) Fence(k rdma.Key) error {
	t.mu.Lock()
	w := t.windows[k]
	t.mu.Unlock()
	t.fenceWhere(func(x *refWindow) bool { return x == w || w != nil && t.p.defect == "fence-session" })
	return nil
}

func (t *refTarget) fenceWhere(f func(*refWindow) bool) {
	t.mu.Lock()
	var hit []*refWindow
	for _, w := range t.windows {
		if f(w) {
			hit = append(hit, w)
		}
	}
	t.mu.Unlock()
	for _, w := range hit {
		w.fence()
	}
}

func (t *refTarget) Close() error {
	t.mu.Lock()
	was, l := t.ended, t.link
	t.ended = true
	t.mu.Unlock()
	t.fenceWhere(func(*refWindow) bool { return true })
	if l != nil {
		l.kill()
		if !was {
			l.i.down()
		}
	}
	return nil
}

func (t *refTarget) down() {
	t.mu.Lock()
	was := t.ended
	t.ended = true
	t.mu.Unlock()
	if !was {
		t.p.push(rdma.Event{Kind: rdma.EventDown, Session: t.id, Status: fault.PeerLost})
	}
}
