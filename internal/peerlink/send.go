package peerlink

import (
	"math"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// sendq is a link's queue of frames, under the link's mu.
type sendq struct {
	wake    sync.Cond
	queue   []wire.Frame
	frames  int       // queued or being written
	bytes   int       // theirs
	flushBy time.Time // set when the link is down and what is queued may still leave
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
	l.wake.Signal()
	l.mu.Unlock()
	return nil
}

// Frames are gathered up to writeChunk bytes; a larger array goes out from where it lies, in pieces of that size.
const writeChunk = 64 << 10

// write is the writer's goroutine.
func (l *link) write() {
	defer l.wg.Done()
	buf := make([]byte, 0, 4<<10)
	var batch []wire.Frame
	for {
		l.mu.Lock()
		for len(l.queue) == 0 && l.err == nil {
			l.wake.Wait()
		}
		if len(l.queue) == 0 { // down, and nothing may leave any more
			last := !l.flushBy.IsZero()
			l.mu.Unlock()
			if last {
				finishWrites(l.conn)
			}
			return
		}
		batch, l.queue = l.queue, batch[:0]
		l.mu.Unlock()

		err := l.writeBatch(&buf, batch)
		if err != nil {
			l.lost(err, "the peer takes no frames")
			return
		}
		n := 0
		for i := range batch {
			n += size(&batch[i])
		}
		l.mu.Lock()
		if l.frames > 0 { // else the queue was dropped meanwhile
			l.frames -= len(batch)
			l.bytes -= n
		}
		l.mu.Unlock()
		clear(batch)
		if cap(batch) > maxSpare {
			batch = nil
		}
		if cap(buf) > 2*writeChunk {
			buf = make([]byte, 0, 4<<10)
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
