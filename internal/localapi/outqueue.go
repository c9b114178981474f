package localapi

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/rawsock"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	// answersAhead is how many unsent bytes hold up the next request: with them, and one answer of any size on top, a
	// client that asks and does not read is bounded.
	answersAhead = 1 << 20
	// writeChunk is what the socket must take within the write time-out.
	writeChunk = 256 << 10
	// keepBuffer is the largest buffer that is kept for reuse.
	keepBuffer = 1 << 20
)

var (
	errSlowEvents = errors.New("too many events are unread")
	errSlowSocket = errors.New("the socket took nothing for too long")
)

// tally counts unsent frames.
type tally struct{ events, eventBytes, bytes int }

func (t *tally) add(o tally) {
	t.events += o.events
	t.eventBytes += o.eventBytes
	t.bytes += o.bytes
}

// outQueue holds what was not yet written to a client. Who queues a frame also writes it, as far as the socket takes it
// without waiting: to wake a goroutine for that would take longer than the write. What the socket does not take is the writer
// goroutine's, and whatever has gathered while one write ran goes out in the next.
type outQueue struct {
	conn *net.UnixConn
	lim  Limits
	fail func(error) // called without the lock, at most once from each goroutine that finds the failure

	mu      sync.Mutex
	change  sync.Cond // something for the writer
	less    sync.Cond // less is unsent, or stopped
	buf     []byte    // for the next write
	held    []byte    // events that wait for an answer
	holding bool
	inBuf   tally
	inHeld  tally
	flying  tally     // in the hands of who writes
	stopped bool      // takes nothing more
	ending  bool      // the writer returns when buf is empty
	lastBy  time.Time // when ending: what is not written by then is lost

	busy  bool   // somebody writes: batch, spare and now are its own
	left  bool   // what there is to write is the writer's: the socket was full
	batch []byte // what is being written
	spare []byte
	now   rawsock.Sender
}

func newOutQueue(conn *net.UnixConn, lim Limits, fail func(error)) *outQueue {
	q := &outQueue{conn: conn, lim: lim, fail: fail}
	q.change.L, q.less.L = &q.mu, &q.mu
	q.left = q.now.Init(conn) != nil // the connection is closed, as the writer will find
	return q
}

// layers queues an EVENT_LAYERS frame; it is packed in place, since there is one for each layer of each lease.
func (q *outQueue) layers(v wire.LayersVisible) {
	size := wire.HeaderSize + 8 + 4*len(v.Layers)
	q.append(size, func(b []byte) []byte {
		n := len(b)
		b = append(b, make([]byte, wire.HeaderSize)...)
		wire.PutHeader(b[n:], wire.Header{Kind: wire.KindEventLayers, Array: uint32(size - wire.HeaderSize)})
		return wire.AppendLayersVisible(b, v)
	})
}

// event queues an event.
func (q *outQueue) event(f wire.Frame) {
	q.append(wire.HeaderSize+len(f.JSON)+len(f.Array), func(b []byte) []byte { return wire.Append(b, f) })
}

func (q *outQueue) append(size int, put func([]byte) []byte) {
	q.mu.Lock()
	if q.stopped {
		q.mu.Unlock()
		return
	}
	n := q.inBuf.events + q.inHeld.events + q.flying.events
	bytes := q.inBuf.eventBytes + q.inHeld.eventBytes + q.flying.eventBytes
	if n+1 > q.lim.EventFrames || bytes+size > q.lim.EventBytes {
		q.stopped = true
		q.mu.Unlock()
		q.fail(errSlowEvents)
		return
	}
	t := tally{events: 1, eventBytes: size, bytes: size}
	if q.holding {
		q.held = put(q.held)
		q.inHeld.add(t)
		q.mu.Unlock()
		return
	}
	q.buf = put(q.buf)
	q.inBuf.add(t)
	q.sendLocked()
}

// hold keeps events back until the next release: the answer that makes a lease or a transfer known to the client must
// come before its first event, which the engine may have from another goroutine at once.
func (q *outQueue) hold() {
	q.mu.Lock()
	q.holding = true
	q.mu.Unlock()
}

// answer queues an answer; with release also the events that were held back, behind it.
func (q *outQueue) answer(f wire.Frame, release bool) {
	q.mu.Lock()
	if !q.stopped {
		q.buf = wire.Append(q.buf, f)
		q.inBuf.bytes += wire.HeaderSize + len(f.JSON) + len(f.Array)
	}
	if release {
		q.buf = append(q.buf, q.held...)
		q.inBuf.add(q.inHeld)
		q.holding, q.held, q.inHeld = false, q.held[:0], tally{}
	}
	q.sendLocked()
}

// room waits until another answer may be queued; false says that none is wanted any more.
func (q *outQueue) room() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.stopped && !q.roomy() {
		q.less.Wait()
	}
	return !q.stopped
}

// hasRoom says whether room would return at once.
func (q *outQueue) hasRoom() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.stopped || q.roomy()
}

func (q *outQueue) roomy() bool { return q.inBuf.bytes+q.inHeld.bytes+q.flying.bytes <= answersAhead }

// stop makes the queue take nothing more; what is in it can still be written by finish.
func (q *outQueue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.less.Broadcast()
	q.mu.Unlock()
}

// finish lets the writer write what is queued, then last (nil: nothing), and end; all until by at the latest.
func (q *outQueue) finish(last *wire.Frame, by time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.stopped, q.ending, q.lastBy = true, true, by
	if last != nil {
		q.buf = wire.Append(q.buf, *last)
	} else {
		q.buf = nil // nobody is there to read it
	}
	_ = q.conn.SetWriteDeadline(by)
	q.change.Signal()
	q.less.Broadcast()
}

// inTurn is how many writes somebody makes who came to queue one frame: what others add meanwhile is then the writer's.
const inTurn = 4

// sendLocked writes what is queued as far as that needs no waiting. mu is held and given up.
func (q *outQueue) sendLocked() {
	for n := 0; ; n++ {
		switch {
		case q.busy || len(q.buf) == 0: // who writes looks again
			q.mu.Unlock()
			return
		case q.left || q.ending || n == inTurn:
			q.left = true
			q.change.Signal()
			q.mu.Unlock()
			return
		}
		q.take()
		q.mu.Unlock()
		sent, err := q.now.Send(q.batch)
		q.mu.Lock()
		if err == nil && sent < len(q.batch) {
			q.batch = q.batch[sent:]
			q.busy, q.left = false, true
			q.change.Signal()
			q.mu.Unlock()
			return
		}
		q.written(err)
		if err != nil {
			q.mu.Unlock()
			q.fail(err)
			return
		}
	}
}

// take makes what is queued the batch of who writes. mu is held.
func (q *outQueue) take() {
	q.busy = true
	q.batch, q.buf, q.spare = q.buf, q.spare[:0], nil
	q.flying, q.inBuf = q.inBuf, tally{}
}

// written ends a turn of writing. mu is held.
func (q *outQueue) written(err error) {
	q.busy, q.flying = false, tally{}
	switch {
	case err != nil:
		q.stopped, q.ending, q.buf, q.held = true, true, nil, nil
	case cap(q.batch) <= keepBuffer:
		q.spare = q.batch[:0]
	}
	q.batch = nil
	if q.ending {
		q.change.Signal()
	}
	q.less.Broadcast()
}

// write is the writer: it returns when the queue has ended or the socket has failed.
func (q *outQueue) write() {
	for {
		q.mu.Lock()
		for q.busy || !q.left && !q.ending {
			q.change.Wait()
		}
		if len(q.batch) == 0 && len(q.buf) == 0 {
			if q.left = false; q.ending {
				q.mu.Unlock()
				return
			}
			q.mu.Unlock()
			continue
		}
		if len(q.batch) == 0 {
			q.take()
		}
		q.busy = true
		b := q.batch
		q.mu.Unlock()

		err := q.writeBatch(b)

		q.mu.Lock()
		q.written(err)
		q.mu.Unlock()
		if err != nil {
			q.fail(err)
			return
		}
	}
}

func (q *outQueue) writeBatch(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writeChunk)
		by := time.Now().Add(q.lim.Write)
		q.mu.Lock() // so that it never undoes the deadline of finish
		if q.ending && by.After(q.lastBy) {
			by = q.lastBy
		}
		err := q.conn.SetWriteDeadline(by)
		q.mu.Unlock()
		if err == nil {
			_, err = q.conn.Write(b[:n])
		}
		var ne net.Error
		if errors.As(err, &ne) && ne.Timeout() {
			return errSlowSocket
		}
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
