package kvxfer

import (
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Pull is a transfer of a peer's blocks into own ones, from [Cache.Read] and [Cache.ReadFrom].
//
// It ends well only when the source has said that it held its blocks throughout; the own blocks are COMMITTED then. After any
// other end they are FREE, and what they held before is gone. Its errors are those of a [Push]; MayHaveWritten speaks of the
// own blocks. Released is false while bytes may still land in them.
//
// Its methods may be called from any goroutine.
type Pull struct {
	transfer
	vouched *vouched

	smu      sync.Mutex
	sent     bool // the daemon was told of the own blocks
	unwanted bool // cancelled before the daemon gave it a number
	taken    []wire.Vouch
}

// Cancel ends the transfer early, with Cancelled, or well if it was done already. It returns at once; the memory may stay
// HELD until WhenReleased.
func (p *Pull) Cancel() {
	p.smu.Lock()
	early := !p.sent
	if early { // under the lock: no answer of the holder may go on meanwhile
		p.neverSent(fault.New(fault.Cancelled, p.op, "cancelled before the holder had answered"))
	}
	p.smu.Unlock()
	if early {
		return
	}
	if !p.cancel() {
		p.smu.Lock()
		p.unwanted = true
		p.smu.Unlock()
		p.cancel() // it may have got its number meanwhile
	}
}

// open asks a holder for a ticket, and with it for the blocks. It returns at once: another node answers. pull makes PULL's
// body of a ticket and the time that is left.
func (p *Pull) open(body *wire.Open, keys, packed []byte, pull func(ticket string, left time.Duration) *wire.PullRequest) *fault.Error {
	var answered func(*fault.Error)
	accepted := func(f *wire.Frame) error { return p.accepted(f, p, p.Cancel) }
	opened := func(f *wire.Frame) error {
		var info wire.OpenInfo
		if err := f.Decode(&info); err != nil {
			return err
		}
		if info.Ticket == "" {
			return violated("ticket", "absent")
		}
		left := time.Until(p.until)
		p.smu.Lock()
		if p.isOver() {
			p.smu.Unlock()
			return nil
		}
		p.sent = left > 0
		p.smu.Unlock()
		if left <= 0 {
			p.neverSent(fault.New(fault.DeadlineExceeded, p.op, "the holder's answer came too late"))
			return nil
		}
		p.taken = p.vouched.take(p.ids)
		p.sess.ask(p)
		if fe := p.sess.conn.requestLater(request{op: p.op, kind: wire.KindPull, body: pull(info.Ticket, left), data: packed, onOK: accepted, onDone: answered}); fe != nil {
			answered(fe)
		}
		return nil
	}
	answered = func(fe *fault.Error) {
		if fe == nil {
			return
		}
		p.smu.Lock()
		sent := p.sent
		p.smu.Unlock()
		p.tmu.Lock()
		begun := p.begun
		p.tmu.Unlock()
		if begun || (sent && !p.sess.conn.alive()) {
			return // the session ends it, as everything whose memory may still be touched
		}
		p.sess.answered(p)
		if sent && refused(fe) {
			p.vouched.restore(p.taken)
		}
		p.neverSent(again(fe, p.op))
	}
	p.endAt(p.until.Add(grace), p.expireOpening)
	if fe := p.sess.conn.requestLater(request{op: p.op, kind: wire.KindOpen, body: body, data: keys, onOK: opened, onDone: answered}); fe != nil {
		p.mu.Lock()
		p.quiet = true // nobody has it
		p.mu.Unlock()
		p.end(nil, fe)
		return fe
	}
	return nil
}

// accept runs behind the number.
func (p *Pull) accept() {
	p.sess.answered(p)
	// Again: a lease of these blocks may have been committed between the call and its answer.
	p.vouched.take(p.ids)
	p.smu.Lock() // behind the number: whoever found none has said so by now
	unwanted := p.unwanted
	p.smu.Unlock()
	if unwanted {
		p.tmu.Lock()
		n := p.number
		p.tmu.Unlock()
		// The transfer has its outcome already, perhaps; a lost connection ends it.
		_ = p.sess.conn.notify(wire.KindPushCancel, &wire.PushCancel{Transfer: n}, nil)
	}
}

// neverSent ends it before any byte of the own blocks could change.
func (p *Pull) neverSent(fe *fault.Error) {
	fe.MayHaveWritten = false
	p.setReleased()
	p.fail(fe)
	p.tellReleased()
}

func (p *Pull) expireOpening() {
	p.smu.Lock()
	early := !p.sent
	if early {
		p.neverSent(fault.New(fault.DeadlineExceeded, p.op, "the holder did not answer in time"))
	}
	p.smu.Unlock()
	if !early {
		p.expire(p.Cancel)
	}
}

// Scatter is a transfer between an own region and a peer's, from [Region.Writev] and [Region.Readv].
//
// It ends as other transfers do; a range outside what is advertised ends it with OutOfBounds. Until it is released, the own
// bytes of a write must not be changed and those of a read not be used.
//
// Its methods may be called from any goroutine.
type Scatter struct{ transfer }

// Cancel ends the transfer early, with Cancelled, or well if it was done already. It returns at once; the memory may stay
// HELD until WhenReleased.
func (s *Scatter) Cancel() { s.cancel() }
