package tcp

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// read is the lane's reader goroutine. It never sends and never waits for a sender, so the target can always get rid
// of what it has to say.
func (l *initLane) read() {
	defer l.i.wg.Done()
	defer l.unuse()
	for {
		if err := l.readFrame(); err != nil {
			l.i.fail(err)
			return
		}
	}
}

func (l *initLane) readFrame() error {
	if err := l.rx.fill(headerLen, 0); err != nil {
		return err
	}
	h, err := parseHeader(l.rx.ctl)
	if err != nil {
		return err
	}
	l.rx.drop(headerLen)
	switch h.kind {
	case kindResult:
		n := int(h.count) * resultLen
		if err := l.rx.fill(n, headerLen); err != nil {
			return err
		}
		err = l.results(int(h.count))
		l.rx.drop(n)
		return err
	case kindData:
		return l.data(&h)
	}
	return violation("frame kind %d from a target", h.kind)
}

// results completes the operations that a result frame names. Unknown ones have completed before.
func (l *initLane) results(n int) error {
	i := l.i
	i.mu.Lock()
	defer i.mu.Unlock()
	defer i.flush()
	for k := range n {
		r, err := parseResult(l.rx.ctl[k*resultLen:])
		if err != nil {
			return err
		}
		o, err := l.find(r.seq)
		if err != nil {
			return err
		}
		if o == nil {
			continue
		}
		if r.status == 0 {
			o.mu.Lock()
			early := !o.lastSent || r.bytes != o.total || o.kind != rdma.OpWrite
			o.mu.Unlock()
			if early {
				return violation("success for an operation that is not all sent")
			}
		}
		o.shut()
		i.finish(o, statusOf(r.status), min(r.bytes, o.total), r.wrote)
	}
	return nil
}

// find returns the pending operation behind a number from the wire. The session's lock is held.
func (l *initLane) find(seq uint64) (*op, error) {
	o := l.i.bySeq[seq]
	if seq > l.i.lastSeq || o != nil && o.lane != l {
		return nil, violation("operation %d is not of this lane", seq)
	}
	return o, nil
}

// data places a piece of a READ. The operation may complete at any moment meanwhile: what remains is discarded.
func (l *initLane) data(h *header) error {
	i := l.i
	i.mu.Lock()
	o, err := l.find(h.seq)
	if o != nil {
		o.holders++
	}
	i.mu.Unlock()
	if err != nil {
		return err
	}
	if o == nil {
		if err := l.rx.discard(uint64(h.payload)); err != nil {
			return err
		}
		_, err := l.trailer()
		return err
	}
	status, err := l.place(o, h)
	i.mu.Lock()
	defer i.mu.Unlock()
	if err == nil && o.pending && (status != 0 || o.received == o.total) {
		o.shut()
		i.finish(o, status, o.received, false)
		i.flush()
	}
	o.holders-- // only now: finish would give the op back, and release again
	o.release()
	return err
}

func (l *initLane) place(o *op, h *header) (fault.Code, error) {
	n := uint64(h.payload)
	if o.kind != rdma.OpRead || h.total != o.total || h.offset != o.received {
		return 0, violation("data [%d, +%d) of %d for a read of %d at %d", h.offset, n, h.total, o.total, o.received)
	}
	var local fault.Code
	if n > 0 {
		l.rx.begin(o.region)
		for left := n; left > 0; {
			x := o.step(&o.in, left)
			l.rx.add(o.region.base+uintptr(x.Local), x.Len)
			left -= x.Len
		}
		placed, st, err := l.rx.place(o)
		if err != nil {
			return 0, err
		}
		local = st
		o.received += placed
	}
	remote, err := l.trailer()
	if remote != 0 {
		return remote, err
	}
	return local, err
}

func (l *lane) trailer() (fault.Code, error) {
	if err := l.rx.fill(trailerLen, 0); err != nil {
		return 0, err
	}
	st, err := parseTrailer(l.rx.ctl)
	l.rx.drop(trailerLen)
	return statusOf(st), err
}
