package peerlink

import (
	"math"
	"sync"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/rawsock"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// sendq is a link's queue of frames, under the link's mu. Who queues a frame also writes it, as far as the connection takes it
// without waiting: to wake the writer's goroutine for it would take longer than the write. What the connection does not take, large
// frames and everything over TLS are the writer's.
type sendq struct {
	wake    sync.Cond // for the writer
	queue   []wire.Frame
	frames  int       // queued or being written
	bytes   int       // theirs
	flushBy time.Time // set when the link is down and what is queued may still leave

	now     rawsock.Sender
	prompt  bool // now may be used: the link was started, and its connection takes bytes as they are
	left    bool // what there is to write is the writer's
	writing bool // somebody writes: batch, rest and buf are its own
	batch   []wire.Frame
	rest    []byte // of batch, in buf
	buf     []byte
}

func size(f *wire.Frame) int { return wire.HeaderSize + len(f.JSON) + len(f.Array) }

func (q *sendq) append(f wire.Frame) {
	q.queue = append(q.queue, f)
	q.frames++
	q.bytes += size(&f)
}

func (q *sendq) drop() { q.queue, q.frames, q.bytes = nil, 0, 0 }

// Send queues a frame. The frame's bytes must not be changed afterwards. An error says that the link is down: why it went
// down, or ResourceExhausted when this frame found the queue full, which ends the link: a peer that does not take
// what is due to it cannot be waited for.
func (l *link) Send(f wire.Frame) error { return l.enqueue(f, l.s.opt.MaxQueueBytes) }

// answerPing is held to the bound in frames alone: a PING that comes while one large block list is being sent must not end the link.
func (l *link) answerPing(request uint64) error {
	return l.enqueue(wire.Frame{Kind: wire.KindOK, Request: request}, math.MaxInt)
}

func (l *link) enqueue(f wire.Frame, maxBytes int) error {
	if l.inbox != nil {
		return l.hand(f)
	}
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return l.err
	}
	if l.frames >= l.s.opt.MaxQueue || l.bytes >= maxBytes {
		err := fault.New(fault.ResourceExhausted, "peer link", "the peer does not take what is sent to it: %d frames of %d bytes wait, allowed %d and %d",
			l.frames, l.bytes, l.s.opt.MaxQueue, l.s.opt.MaxQueueBytes)
		err.Peer = l.ref.Node
		l.mu.Unlock()
		l.shut(err, false)
		return l.cause()
	}
	l.append(f)
	l.sendLocked()
	return nil
}

// begin says that reader and writer run: from now on frames leave.
func (l *link) begin() {
	l.mu.Lock()
	if sc, ok := l.conn.(syscall.Conn); ok {
		l.prompt = l.now.Init(sc) == nil
	}
	l.left = true // what was queued before
	l.wake.Signal()
	l.mu.Unlock()
}

// inTurn is how many writes somebody makes who came to queue one frame: what others add meanwhile is then the writer's.
const inTurn = 4

// sendLocked writes what is queued as far as that needs no waiting. mu is held and given up.
func (l *link) sendLocked() {
	for n := 0; ; n++ {
		switch {
		case l.writing || len(l.queue) == 0: // who writes looks again
			l.mu.Unlock()
			return
		case !l.prompt || l.left || l.err != nil || n == inTurn || !l.small():
			l.left = true
			l.wake.Signal()
			l.mu.Unlock()
			return
		}
		l.take()
		l.mu.Unlock()
		b := l.buf[:0]
		for i := range l.batch {
			b = wire.Append(b, l.batch[i])
		}
		sent, err := l.now.Send(b)
		l.mu.Lock()
		l.buf, l.rest = b, b[sent:]
		if err == nil && len(l.rest) > 0 {
			l.writing, l.left = false, true
			l.wake.Signal()
			l.mu.Unlock()
			return
		}
		l.written()
		if err != nil {
			l.mu.Unlock()
			l.lost(err, "the peer takes no frames")
			return
		}
	}
}

// small says whether what is queued goes into one write.
func (l *link) small() bool {
	n := 0
	for i := range l.queue {
		n += size(&l.queue[i])
	}
	return n <= writeChunk
}

// take makes what is queued the batch of who writes.
func (l *link) take() {
	l.writing = true
	l.batch, l.queue = l.queue, l.batch[:0]
}

// written ends a turn of writing.
func (l *link) written() {
	n := 0
	for i := range l.batch {
		n += size(&l.batch[i])
	}
	if l.frames > 0 { // else the queue was dropped meanwhile
		l.frames -= len(l.batch)
		l.bytes -= n
	}
	l.writing, l.rest = false, nil
	clear(l.batch)
	if l.batch = l.batch[:0]; cap(l.batch) > maxSpare {
		l.batch = nil
	}
	if cap(l.buf) > 2*writeChunk {
		l.buf = nil
	}
	if l.err != nil { // the writer is to see to the end
		l.wake.Signal()
	}
}

// Frames are gathered up to writeChunk bytes; a larger array goes out from where it lies, in pieces of that size.
const writeChunk = 64 << 10

// write is the writer's goroutine.
func (l *link) write() {
	defer l.wg.Done()
	for {
		l.mu.Lock()
		for l.writing || !l.left && l.err == nil {
			l.wake.Wait()
		}
		if l.err != nil && l.flushBy.IsZero() { // nothing may leave any more
			l.queue, l.rest = nil, nil
		}
		if len(l.rest) == 0 && len(l.queue) == 0 {
			l.left = false
			down, last := l.err != nil, !l.flushBy.IsZero()
			l.mu.Unlock()
			if !down {
				continue
			}
			if last {
				finishWrites(l.conn)
			}
			return
		}
		rest := l.rest
		if l.writing = true; len(rest) == 0 {
			l.take()
		}
		l.mu.Unlock()

		var err error
		if len(rest) > 0 {
			err = l.writeAll(rest)
		} else {
			err = l.writeBatch(&l.buf, l.batch)
		}
		l.mu.Lock()
		l.written()
		l.mu.Unlock()
		if err != nil {
			l.lost(err, "the peer takes no frames")
			return
		}
	}
}

// maxSpare bounds the frames' slots that an idle link keeps.
const maxSpare = 1024

func (l *link) writeBatch(buf *[]byte, batch []wire.Frame) error {
	b := (*buf)[:0]
	for i := range batch {
		f := &batch[i]
		if size(f) <= writeChunk {
			b = wire.Append(b, *f)
		} else {
			n := len(b)
			b = append(b, make([]byte, wire.HeaderSize)...)
			wire.PutHeader(b[n:], wire.Header{Kind: f.Kind, Flags: f.Flags, Request: f.Request, JSON: uint32(len(f.JSON)), Array: uint32(len(f.Array))})
			for _, part := range [...][]byte{b, f.JSON, f.Array} {
				if err := l.writeAll(part); err != nil {
					return err
				}
			}
			b = b[:0]
		}
		if len(b) >= writeChunk || i == len(batch)-1 {
			if err := l.writeAll(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	*buf = b
	return nil
}

// writeAll fails when the peer takes nothing for as long as it may be silent: a peer that sends but does not read is
// lost too. One that reads slowly is not.
func (l *link) writeAll(b []byte) error {
	for len(b) > 0 {
		l.mu.Lock()
		if l.flushBy.IsZero() {
			_ = l.conn.SetWriteDeadline(time.Now().Add(l.s.opt.silence()))
		}
		flushing := !l.flushBy.IsZero()
		l.mu.Unlock()
		n, err := l.conn.Write(b[:min(len(b), chunk(l.conn))])
		b = b[n:]
		if err != nil && (n == 0 || flushing || !isTimeout(err)) {
			return err
		}
	}
	return nil
}
