package tcp

import (
	"errors"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// inbound is the operation whose frames a lane is receiving. It holds no memory: an initiator that gives one up
// simply starts the next.
type inbound struct {
	open   bool
	kind   frameKind
	seq    uint64
	key    uint64
	tag    uint64
	total  uint64
	next   uint64 // offset of the next frame
	placed uint64
	began  rdma.Instant // when its first frame was read
	failed bool         // the result has been said; the rest goes to the sink
}

// read is the lane's reader goroutine.
func (l *targetLane) read() {
	defer l.unuse()
	for {
		l.t.box.hold(l.isOver)
		err := l.readFrame()
		if err == errLeft {
			return
		}
		if err != nil {
			l.t.fail(err)
			l.t.crew.leave()
			return
		}
	}
}

// errLeft says that the session was closed while this lane brought its events: the reader is no member of the crew any more.
var errLeft = errors.New("the session is closed")

// run waits until all that is wanted of the receiver has come. Before it waits it tells what is due.
func (l *targetLane) run() error {
	between := l.rx.left == 0 && l.rx.want == headerLen // exactly: a first descriptor may come along
	for {
		done, err := l.rx.run()
		if done && between && l.sock != nil {
			l.sock.got()
		}
		if done || err != nil {
			return err
		}
		if len(l.placed) > 0 {
			if err := l.tell(); err != nil {
				return err
			}
			continue // what the news set going may have an answer already
		}
		l.rx.await(between && l.rx.have == 0, l.rx.left, 0)
	}
}

func (l *targetLane) fill(n, more int) error {
	if l.rx.have >= n {
		return nil
	}
	if n == headerLen && l.rx.secure != nil && len(l.placed) > 0 { // there run waits
		if err := l.tell(); err != nil {
			return err
		}
	}
	l.rx.ask(n, more)
	return l.run()
}

// tell says the results of what was placed, then brings its arrivals: the initiator waits for the one, and who is told the other
// may take his time.
func (l *targetLane) tell() error {
	l.say(l.placed...)
	l.t.box.add(l.news...)
	l.placed, l.news, l.silent = l.placed[:0], l.news[:0], 0
	if !l.t.crew.deliver(&l.t.box, nil) {
		return errLeft
	}
	return nil
}

// What a lane keeps to itself while more comes without a pause.
const (
	maxSilence = 256 << 10 // bytes
	maxPlaced  = 16        // WRITEs
)

func (l *targetLane) readFrame() error {
	if err := l.fill(headerLen, l.rx.ahead-trailerLen-headerLen); err != nil {
		return err
	}
	h, err := parseHeader(l.rx.ctl)
	if err != nil {
		return err
	}
	l.rx.drop(headerLen)
	n, more := int(h.count)*descLen, 0
	switch h.kind {
	case kindRequest:
		more = headerLen
	case kindWrite:
	default:
		return violation("frame kind %d from an initiator", h.kind)
	}
	if err := l.fill(n, more); err != nil {
		return err
	}
	var sum uint64
	l.descs, sum, err = parseDescs(l.descs, l.rx.ctl, &h)
	if err != nil {
		return err
	}
	l.rx.drop(n)
	if err := l.follow(&h, sum); err != nil {
		return err
	}
	if h.kind == kindRequest {
		l.request(&h, sum)
		return nil
	}
	return l.writeFrame(&h)
}

// follow checks that a frame begins a new operation or continues the one that is open.
func (l *targetLane) follow(h *header, sum uint64) error {
	in := &l.in
	if h.offset == 0 {
		if h.seq <= in.seq {
			return violation("operation %d after %d", h.seq, in.seq)
		}
		*in = inbound{open: true, kind: h.kind, seq: h.seq, key: h.key, tag: h.tag, total: h.total, began: l.t.p.opt.Clock.Now()}
	} else if !in.open || in.kind != h.kind || in.seq != h.seq || in.key != h.key || in.tag != h.tag || in.total != h.total || in.next != h.offset {
		return violation("frame at %d of operation %d does not continue what came before", h.offset, h.seq)
	}
	in.next = h.offset + sum
	if in.next == in.total {
		in.open = false
	}
	return nil
}

// refuse says an operation's result before its end: what is still to come of it goes to the sink.
func (l *targetLane) refuse(status fault.Code, wrote bool) {
	l.in.failed = true
	l.say(result{seq: l.in.seq, bytes: l.in.placed, status: status, wrote: wrote || l.in.placed > 0})
}

// admit finds the window and checks a frame's ranges against it, all before the first byte of the frame.
func (t *target) admit(key uint64, access rdma.Access, descs []desc) (*window, fault.Code) {
	w := t.window(rdma.Key(key))
	switch {
	case w == nil:
		return nil, fault.StaleKey
	case w.access != access:
		return nil, fault.PermissionDenied
	case !w.allows(descs):
		return nil, fault.OutOfBounds
	}
	// An empty operation meets the fence and the deadline here and nowhere else.
	st := w.enter()
	if st == 0 {
		w.leave()
	}
	return w, st
}

// writeFrame receives one frame of a WRITE.
func (l *targetLane) writeFrame(h *header) error {
	var w *window
	if !l.in.failed {
		var st fault.Code
		if w, st = l.t.admit(h.key, rdma.AccessWrite, l.descs); st != 0 {
			l.refuse(st, false)
		}
	}
	switch {
	case h.payload == 0:
	case l.in.failed:
		l.rx.drain(uint64(h.payload))
		if err := l.run(); err != nil {
			return err
		}
	default:
		l.rx.begin(w.region)
		for _, d := range l.descs {
			l.rx.add(w.region.base+uintptr(d.off), d.len)
		}
		l.rx.aim(w)
		if err := l.run(); err != nil {
			return err
		}
		l.in.placed += l.rx.placed
		if st := l.rx.status; st != 0 {
			l.refuse(st, st == fault.MemoryFault)
		}
	}
	if err := l.fill(trailerLen, 0); err != nil {
		return err
	}
	st, err := parseTrailer(l.rx.ctl)
	l.rx.drop(trailerLen)
	if err != nil {
		return err
	}
	if st != 0 {
		// The initiator has completed it already. Nothing may follow.
		l.in.open, l.in.failed = false, true
		return nil
	}
	if l.in.next == l.in.total && !l.in.failed {
		l.arrive(w)
	}
	if len(l.placed) == 0 {
		return nil
	}
	if l.silent += uint64(h.payload); l.silent >= maxSilence || len(l.placed) == maxPlaced {
		return l.tell()
	}
	return nil
}

// arrive notes a WRITE whose bytes are all placed. One whose window is fenced by now has failed.
func (l *targetLane) arrive(w *window) {
	if st := w.EnterLate(); st != 0 {
		l.refuse(st, false)
		return
	}
	w.Leave()
	l.placed = append(l.placed, result{seq: l.in.seq, bytes: l.in.total})
	l.news = append(l.news, rdma.Event{Kind: rdma.EventArrival, Session: l.t.id, Bytes: l.in.total, Key: w.key, Tag: l.in.tag,
		Took: l.t.p.opt.Clock.Now() - l.in.began})
}
