package shm

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm/internal/copykernel"
)

const (
	// helpFrom is the size of a Move that is worth waking another thread for: it joins some 20 us later.
	helpFrom = 1 << 20
	// spinFor is how long the caller of a Move looks for the end of chunks that others have begun before it sleeps: about as long as
	// a chunk takes, which is less than being woken.
	spinFor = 30 * time.Microsecond
)

// Move copies on the caller's goroutine, and on the workers' where it is large: rdma.Mover. It waits while nobody takes events, and
// then the caller must hold no lock that whoever takes them needs.
func (i *local) Move(ops []rdma.Op) (n int, status fault.Code) {
	i.t.events.hold(i.isOver)
	defer i.t.events.hand()
	return i.run(ops, false)
}

// MoveQuiet is Move without arrivals: rdma.QuietMover.
func (i *local) MoveQuiet(ops []rdma.Op) (n int, status fault.Code) { return i.run(ops, true) }

func (i *local) run(ops []rdma.Op, quiet bool) (n int, status fault.Code) {
	j := newJob(i, true)
	// What is behind an operation that fails here is not begun.
	for k := range ops {
		st, err := j.admit(&ops[k], i.t.window(ops[k].Remote))
		if err != nil {
			st = fault.CodeOf(err)
		}
		if st != 0 {
			if err == nil {
				last := &j.parts[len(j.parts)-1]
				j.total -= last.total
				j.parts = j.parts[:len(j.parts)-1]
			}
			status = st
			break
		}
	}
	if st := i.begin(j); st != 0 {
		j.release()
		return 0, st
	}
	j.cut()
	if len(j.chunks) > 0 {
		i.copy(j)
	}
	i.mu.Lock()
	i.unlink(j)
	i.mu.Unlock()
	for n = range j.parts {
		x := &j.parts[n]
		st := fault.Code(x.status.Load())
		if st == 0 && x.kind == rdma.OpWrite {
			st = i.arrive(j, x, quiet)
		}
		if st != 0 {
			j.release()
			return n, st
		}
	}
	n = len(j.parts)
	j.release()
	return n, status
}

func (i *local) isOver() bool { return i.over.Load() }

// begin lets the end of a region or the session find a Move, and looks whether one came before.
func (i *local) begin(j *job) fault.Code {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ended != 0 {
		return i.ended
	}
	for k := range j.parts {
		if j.parts[k].own.closed.Load() {
			return fault.Cancelled
		}
	}
	i.link(j)
	return 0
}

// copy makes all copies of a Move.
func (i *local) copy(j *job) {
	j.stream = j.total >= i.p.opt.StreamFrom
	help := j.total >= helpFrom && len(j.chunks) > 1
	if help {
		i.p.pool.offer(j, len(j.chunks)-1)
	}
	c := i.p.pool.copier()
	before := copykernel.Guard(true)
	j.work(c, ^uint64(0))
	copykernel.Guard(before)
	i.p.pool.giveBack(c)
	if help {
		i.p.pool.withdraw(j)
		j.await()
	}
}

// await waits until every chunk is behind.
func (j *job) await() {
	var begun time.Time
	for k := 1; j.ending.Load() != finished; k++ {
		switch {
		case k%256 != 0:
		case begun.IsZero():
			begun = time.Now()
		case time.Since(begun) > spinFor:
			if j.ending.CompareAndSwap(0, waits) {
				<-j.ended
			}
			return
		}
	}
}
