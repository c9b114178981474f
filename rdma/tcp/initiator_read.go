package tcp

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// phase is what an initiator's lane is receiving.
type phase uint8

const (
	atHeader phase = iota
	atResults
	atPayload
	atTrailer
)

// incoming is a frame that is being received. It outlasts a call: whoever reads next goes on where the last one stopped.
type incoming struct {
	at phase
	h  header
	o  *op // of data; nil: the operation has completed, what remains is discarded
	// err is what ended the lane. Nobody reads on: the places that are still wanted are another's by now.
	err error
}

// read is the lane's reader goroutine. It never waits for a sender, so the target can always get rid of what it has to
// say. Only what Deliver's take does with the completions may send, and that does not wait either.
func (l *initLane) read() {
	i := l.i
	defer l.unuse()
	for {
		if l.sock != nil && l.sock.aside() {
			l.sock.stand()
		}
		l.rxMu.Lock()
		done, err := l.readFrame()
		if done && l.sock != nil {
			l.sock.got()
		}
		between, need, holds := l.in.at == atHeader && l.rx.have == 0, l.rx.left, l.rx.holds()
		l.rxMu.Unlock()
		if err != nil {
			i.fail(err)
		}
		if !i.crew.deliver(&i.box, nil) {
			return
		}
		if err != nil {
			i.crew.leave()
			return
		}
		if !done {
			l.rx.await(between, need, holds)
		}
	}
}

// readFrame receives what is there of one frame; false: its end is not. rxMu is held.
func (l *initLane) readFrame() (bool, error) {
	for {
		if l.in.err != nil {
			return false, l.in.err
		}
		var done bool
		if done, l.in.err = l.readPhase(); l.in.err != nil {
			l.endData(0, l.in.err)
			return false, l.in.err
		}
		if !done || l.in.at == atHeader {
			return done, nil
		}
	}
}

func (l *initLane) readPhase() (bool, error) {
	in := &l.in
	switch in.at {
	case atHeader:
		l.rx.ask(headerLen, 0)
	case atResults:
		l.rx.ask(int(in.h.count)*resultLen, headerLen)
	case atTrailer:
		l.rx.ask(trailerLen, 0)
	}
	done, err := l.rx.run()
	if !done || err != nil {
		return false, err
	}
	switch in.at {
	case atHeader:
		if in.h, err = parseHeader(l.rx.ctl); err != nil {
			return false, err
		}
		l.rx.drop(headerLen)
		switch in.h.kind {
		case kindResult:
			in.at = atResults
		case kindData:
			in.at = atPayload
			err = l.beginData(&in.h)
		default:
			err = violation("frame kind %d from a target", in.h.kind)
		}
	case atResults:
		in.at = atHeader
		err = l.results(int(in.h.count))
		l.rx.drop(int(in.h.count) * resultLen)
	case atPayload:
		in.at = atTrailer
	case atTrailer:
		in.at = atHeader
		var remote fault.Code
		if remote, err = parseTrailer(l.rx.ctl); err == nil {
			l.rx.drop(trailerLen)
			l.endData(statusOf(remote), nil)
		}
	}
	return true, err
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

// beginData aims a piece of a READ at its places. The operation may complete at any moment until endData: what remains is
// discarded.
func (l *initLane) beginData(h *header) error {
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
	l.in.o = o
	n := uint64(h.payload)
	if o == nil {
		l.rx.drain(n)
		return nil
	}
	if o.kind != rdma.OpRead || h.total != o.total || h.offset != o.received {
		return violation("data [%d, +%d) of %d for a read of %d at %d", h.offset, n, h.total, o.total, o.received)
	}
	l.rx.begin(o.region)
	for left := n; left > 0; {
		x := o.step(&o.in, left)
		l.rx.add(o.region.base+uintptr(x.Local), x.Len)
		left -= x.Len
	}
	l.rx.aim(o)
	return nil
}

// endData takes note of a piece that has come, or with err gives it up.
func (l *initLane) endData(remote fault.Code, err error) {
	o := l.in.o
	if o == nil {
		return
	}
	l.in.o = nil
	status := remote
	if status == 0 {
		status = l.rx.status
	}
	i := l.i
	i.mu.Lock()
	defer i.mu.Unlock()
	if err == nil {
		o.received += l.rx.placed
		if o.pending && (status != 0 || o.received == o.total) {
			o.shut()
			i.finish(o, status, o.received, false)
			i.flush()
		}
	}
	o.holders-- // only now: finish would give the op back, and release again
	o.release()
}
