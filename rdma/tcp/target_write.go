package tcp

import (
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// targetLane is a target's lane.
type targetLane struct {
	lane
	t *target

	// The reader alone.
	in    inbound
	descs []desc
	// Of WRITEs that are placed: their results and their arrivals, not yet told. See tell.
	placed []result
	news   []rdma.Event
	silent uint64 // bytes that came since the first of them

	// mu guards what the reader hands to the writer.
	mu      sync.Mutex
	work    sync.Cond // there is something to write, or the lane is over
	room    sync.Cond // there is room again, or the lane is over
	over    bool
	busy    bool     // somebody is using tx
	resume  bool     // the reader began a frame and the socket was full: the writer goes on
	half    *request // ...of this READ; nil: of results
	results []result
	queue   []*request // waiting
	spare   []*request

	refused uint64 // whoever is writing: the READ whose further requests are dropped
}

// request is one frame of a READ, waiting for the writer.
type request struct {
	h     header
	sum   uint64
	descs []desc
}

// What a lane keeps of a peer that asks and does not read. Beyond it the lane's reader waits, so the peer's own
// frames back up; it cannot be a deadlock, because an initiator's reader waits for nobody.
const (
	maxRequests = 64
	maxResults  = 4096
)

func newTargetLane(t *target) *targetLane {
	l := &targetLane{t: t, descs: make([]desc, 0, maxCount)}
	l.work.L, l.room.L = &l.mu, &l.mu
	return l
}

// stop makes the lane's goroutines leave; the connection is closed by whoever calls it.
func (l *targetLane) stop() {
	l.mu.Lock()
	l.over = true
	l.work.Broadcast()
	l.room.Broadcast()
	l.mu.Unlock()
}

func (l *targetLane) isOver() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.over
}

// say queues results and, when nobody else is writing, sends them at once: a goroutine less to wake.
func (l *targetLane) say(rs ...result) {
	l.mu.Lock()
	for len(l.results) >= maxResults && !l.over {
		l.room.Wait()
	}
	l.results = append(l.results, rs...)
	if l.over || l.busy || len(l.queue) > 0 {
		l.work.Signal()
		l.mu.Unlock()
		return
	}
	l.busy = true
	l.takeResults()
	l.mu.Unlock()
	done, err := l.tx.flush(false)
	l.mu.Lock()
	defer l.mu.Unlock()
	if done || err != nil { // the reader sees a dead lane by itself
		l.busy = false
	} else {
		l.resume = true
	}
	if l.resume || len(l.results)+len(l.queue) > 0 {
		l.work.Signal()
	}
}

// takeResults begins a frame of as many results as fit. mu is held; some are there.
func (l *targetLane) takeResults() {
	n := min(len(l.results), maxCount)
	h := header{kind: kindResult, count: uint16(n)}
	h.put(l.tx.ctl)
	for k := range n {
		l.results[k].put(l.tx.ctl[headerLen+k*resultLen:])
	}
	l.results = l.results[:copy(l.results, l.results[n:])]
	l.tx.begin(headerLen+n*resultLen, nil)
	l.room.Signal()
}

// request serves one frame of a READ: at once where it is small and nobody else is writing, else it is the writer's.
func (l *targetLane) request(h *header, sum uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.queue) >= maxRequests && !l.over {
		l.room.Wait()
	}
	var r *request
	if n := len(l.spare); n > 0 {
		r, l.spare = l.spare[n-1], l.spare[:n-1]
	} else {
		r = new(request)
	}
	r.h, r.sum = *h, sum
	r.descs = append(r.descs[:0], l.descs...)
	if sum > directLen || l.over || l.busy || len(l.results)+len(l.queue) > 0 {
		l.queue = append(l.queue, r)
		l.work.Signal()
		return
	}
	l.busy = true
	l.mu.Unlock()
	done, err := l.serve(r, false)
	l.mu.Lock()
	if done || err != nil { // the reader sees a dead lane by itself
		l.busy = false
		l.spare = append(l.spare, r)
	} else {
		l.resume, l.half = true, r
	}
	if l.resume || len(l.results)+len(l.queue) > 0 {
		l.work.Signal()
	}
}

// write is the lane's writer goroutine.
func (l *targetLane) write() {
	defer l.t.crew.leave()
	defer l.unuse()
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for !l.over && !l.resume && (l.busy || len(l.results)+len(l.queue) == 0) {
			l.work.Wait()
		}
		if l.over {
			return
		}
		var r *request
		half := l.resume
		switch {
		case half:
			r, l.half, l.resume = l.half, nil, false
		case len(l.results) > 0:
			l.takeResults()
		default:
			r = l.queue[0]
			l.queue = l.queue[:copy(l.queue, l.queue[1:])]
		}
		l.busy = true
		l.mu.Unlock()
		var err error
		switch {
		case r == nil:
			_, err = l.tx.flush(true)
		case half:
			if _, err = l.tx.flush(true); err == nil {
				l.served(r)
			}
		default:
			_, err = l.serve(r, true)
		}
		if err != nil {
			l.t.fail(err)
		}
		l.mu.Lock()
		l.busy = false
		if r != nil {
			l.spare = append(l.spare, r)
			l.room.Signal()
		}
	}
}

// serve answers one request with data frames. Without wait, which is for one frame, it may return false with no error: the socket
// is full and somebody must flush the rest and look at its end.
func (l *targetLane) serve(r *request, wait bool) (bool, error) {
	if r.h.seq == l.refused {
		return true, nil
	}
	w, st := l.t.admit(r.h.key, rdma.AccessRead, r.descs)
	if st != 0 {
		l.refuseRead(r, st)
		return true, nil
	}
	h := header{kind: kindData, seq: r.h.seq, total: r.h.total, offset: r.h.offset}
	end := r.h.offset + r.sum
	var i int
	var off uint64
	for {
		n := min(end-h.offset, maxPayload)
		h.payload = uint32(n)
		h.put(l.tx.ctl)
		l.tx.begin(headerLen, w)
		l.tx.from(w.region)
		for left := n; left > 0; {
			d := r.descs[i]
			k := min(d.len-off, left)
			l.tx.add(w.region.base+uintptr(d.off+off), k)
			left -= k
			if off += k; off == d.len {
				i, off = i+1, 0
			}
		}
		l.tx.seal()
		done, err := l.tx.flush(wait)
		if !done || err != nil {
			return false, err
		}
		if !l.served(r) {
			return true, nil
		}
		if h.offset += n; h.offset == end {
			return true, nil
		}
		if err := l.sendResults(); err != nil {
			return false, err
		}
	}
}

// served looks at how a data frame ended; false: the READ is over, at the initiator too.
func (l *targetLane) served(r *request) bool {
	st := l.tx.status
	if st == 0 {
		return true
	}
	l.refused = r.h.seq
	if !l.tx.begun {
		l.refuseRead(r, st)
	}
	return false
}

// refuseRead queues the end of a READ, whose further requests are dropped. Whoever is writing says it, so it never waits for room.
func (l *targetLane) refuseRead(r *request, st fault.Code) {
	l.mu.Lock()
	l.results = append(l.results, result{seq: r.h.seq, status: st})
	l.refused = r.h.seq
	l.mu.Unlock()
}

// sendResults lets results pass between the frames of a long READ.
func (l *targetLane) sendResults() error {
	for {
		l.mu.Lock()
		n := len(l.results)
		if n > 0 {
			l.takeResults()
		}
		l.mu.Unlock()
		if n == 0 {
			return nil
		}
		if _, err := l.tx.flush(true); err != nil {
			return err
		}
	}
}
