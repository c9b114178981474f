package shm

import (
	"sync"
	"sync/atomic"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// job is copies of a session inside one process: one posted operation, or all of one Move. Whoever works on it takes chunks from
// one counter until there are none, so that nobody who begins late, or is held up, is waited for but with what it has begun.
//
// A job is pooled. Its owner, the queue and everybody who works on it hold it; who holds it and has no chunk touches nothing but
// the counter.
type job struct {
	i      *local
	move   bool
	stream bool
	began  rdma.Instant
	total  uint64
	ranges []rdma.Range // of a posted operation: the caller's are the caller's again
	parts  []part
	chunks []span

	next atomic.Uint32 // chunk that nobody has taken
	done atomic.Uint32 // chunks that are behind
	bad  atomic.Uint32 // the first part that failed; nobody goes on with it or what is behind it
	refs atomic.Int32

	// How the caller of Move waits for chunks that others have begun.
	ending atomic.Uint32
	ended  chan struct{} // capacity 1

	// The gate of the local memory.
	mu   sync.RWMutex
	void fault.Code // why nobody gets in any more; 0: they do

	live        bool // under the session's lock, as is the list of what is live
	prev, after *job

	queued bool // under the pool's lock
	behind *job
}

// part is one operation of a job.
type part struct {
	kind   rdma.OpKind
	id     uint64
	key    rdma.Key
	tag    uint64
	own    *region
	w      *window
	ranges []rdma.Range
	total  uint64

	placed atomic.Uint64
	wrote  atomic.Bool
	status atomic.Uint32 // a fault.Code
}

// span is a chunk: n bytes of a part from byte off of range first on.
type span struct {
	part, first uint32
	off, n      uint64
}

const (
	waits    = 1 // states of job.ending
	finished = 2
)

var jobs = sync.Pool{New: func() any { return &job{ended: make(chan struct{}, 1)} }}

func newJob(i *local, move bool) *job {
	j := jobs.Get().(*job)
	j.i, j.move, j.total, j.void, j.began = i, move, 0, 0, i.p.opt.Clock.Now()
	j.next.Store(0)
	j.done.Store(0)
	j.bad.Store(^uint32(0))
	j.ending.Store(0)
	j.refs.Store(1)
	return j
}

// release is the end of one hold.
func (j *job) release() {
	if j.refs.Add(-1) > 0 {
		return
	}
	clear(j.parts)
	j.i, j.parts, j.chunks, j.ranges = nil, j.parts[:0], j.chunks[:0], j.ranges[:0]
	jobs.Put(j)
}

// admit adds an operation as the job's next part; the ranges stay the caller's where it is a Move. status is why the operation
// fails before its first byte, err what Post says of it: the operation is not taken then. The window is looked up by the caller.
func (j *job) admit(in *rdma.Op, w *window) (status fault.Code, err error) {
	if err := in.CheckKind(); err != nil {
		return 0, err
	}
	r, err := j.i.p.ours("post", in.Local)
	if err != nil {
		return 0, err
	}
	if err := in.CheckCount(j.i.p.opt.MaxRanges); err != nil {
		return 0, err
	}
	ranges, total := in.Ranges, uint64(0)
	if !j.move {
		if j.ranges, total, err = in.Compact(j.ranges[:0], &r.mem, j.i.p.opt.MaxOpBytes); err != nil {
			return 0, err
		}
		ranges = j.ranges
	} else if total, err = in.CheckLocal(&r.mem, j.i.p.opt.MaxOpBytes); err != nil {
		return 0, err
	}
	j.parts = append(j.parts, part{})
	x := &j.parts[len(j.parts)-1]
	x.kind, x.id, x.key, x.own, x.w, x.ranges, x.total = in.Kind, in.ID, in.Remote, r, w, ranges, total
	if x.kind == rdma.OpWrite {
		x.tag = in.Tag
	}
	j.total += total
	return x.allowed(), nil
}

// allowed says why a part fails before its first byte.
func (x *part) allowed() fault.Code {
	access := rdma.AccessWrite
	if x.kind == rdma.OpRead {
		access = rdma.AccessRead
	}
	switch {
	case x.w == nil:
		return fault.StaleKey
	case x.w.access != access:
		return fault.PermissionDenied
	}
	m, bounds := &x.w.region.access, x.w.bounds
	for k := range x.ranges {
		if r := &x.ranges[k]; r.Len > 0 && (!m.holds(r.Remote, r.Len) || !bounds.Allows(r.Remote, r.Len)) {
			return fault.OutOfBounds
		}
	}
	if x.total > 0 {
		return 0 // each chunk meets the gate
	}
	st := x.w.Enter()
	if st == 0 {
		x.w.Leave()
	}
	return st
}

// cut makes the chunks.
func (j *job) cut() {
	size := uint64(chunk)
	for k := range j.parts {
		cur, pieces := span{part: uint32(k)}, 0
		for i := range j.parts[k].ranges {
			for off, rest := uint64(0), j.parts[k].ranges[i].Len; rest > 0; {
				if cur.n == 0 {
					cur.first, cur.off = uint32(i), off
				}
				n := min(rest, size-cur.n)
				cur.n += n
				off += n
				rest -= n
				if pieces++; cur.n == size || pieces == chunkSteps {
					j.chunks = append(j.chunks, cur)
					cur.n, pieces = 0, 0
				}
			}
		}
		if cur.n > 0 {
			j.chunks = append(j.chunks, cur)
		}
	}
}

// left reports whether there are chunks that nobody has taken.
func (j *job) left() bool { return int(j.next.Load()) < len(j.chunks) }

// work takes chunks until there are none, or until most bytes are copied. The goroutine is under copykernel.Guard.
func (j *job) work(c *copier, most uint64) {
	for copied := uint64(0); copied < most; {
		k := j.next.Add(1) - 1
		if int(k) >= len(j.chunks) {
			j.next.Store(uint32(len(j.chunks))) // the counter must not go round
			return
		}
		s := &j.chunks[k]
		if s.part < j.bad.Load() {
			j.copy(s, c)
		}
		copied += s.n
		if int(j.done.Add(1)) == len(j.chunks) {
			j.finish()
		}
	}
}

// finish is called once, by whoever was the last to be done with a chunk.
func (j *job) finish() {
	if !j.move {
		j.i.placed(j)
	} else if j.ending.Swap(finished) == waits {
		j.ended <- struct{}{}
	}
}

// copy moves one chunk from inside both gates.
func (j *job) copy(s *span, c *copier) {
	if j.i.hold != nil {
		j.i.hold()
	}
	x := &j.parts[s.part]
	st := j.enter()
	if st == 0 {
		if st = x.w.Enter(); st == 0 {
			x.wrote.Store(true)
			err := c.span(x, s, j.stream)
			x.w.Leave()
			if err != nil {
				st = fault.CodeOf(err)
				j.i.p.opt.Logger.Info("memory fault", "role", "both", "session", uint64(j.i.id), "error", err)
			}
		}
		j.leave()
	}
	if st == 0 {
		x.placed.Add(s.n)
		return
	}
	x.status.CompareAndSwap(0, uint32(st))
	for b := j.bad.Load(); s.part < b && !j.bad.CompareAndSwap(b, s.part); b = j.bad.Load() {
	}
}

func (j *job) enter() fault.Code {
	j.mu.RLock()
	if j.void != 0 {
		defer j.mu.RUnlock()
		return j.void
	}
	return 0
}

func (j *job) leave() { j.mu.RUnlock() }

// shut takes the local memory back: it waits for whoever is inside.
func (j *job) shut(why fault.Code) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.void == 0 {
		j.void = why
	}
}

// uses reports whether a part's local side is r.
func (j *job) uses(r *region) bool {
	for k := range j.parts {
		if j.parts[k].own == r {
			return true
		}
	}
	return false
}
