package peerlink

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// A link of the node to itself has both ends in this process: two clients of one daemon. There is no connection between them, so no
// hello, no heartbeat and no coding of frames: what one end sends is in the other's inbox, and a goroutine an end hands it on,
// because whoever sends may hold what the handler needs. It is made where the provider that would be chosen reaches itself inside
// the process; whoever asks for another gets a link over TCP like that to any peer.

// inside gives the provider for a link to this node inside the process; nil: the link is made like any other.
func (s *Links) inside(ref *xfer.PeerRef) rdma.Provider {
	if ref.Node != s.opt.Node || ref.Epoch != s.opt.Epoch {
		return nil
	}
	name := ref.Provider
	if allowed := s.allowed(ref); name == "" && len(allowed) > 0 {
		name = allowed[0]
	}
	if p, ok := s.provider(name).(rdma.Insider); ok && p.Inside() {
		return p
	}
	return nil
}

// connectInside makes a link to this node. It is started but not opened, as connect's is; the other end is both.
func (s *Links) connectInside(ctx context.Context, ref xfer.PeerRef, p rdma.Provider) (*link, error) {
	own := ref
	own.Addr = s.opt.Node
	d, a := s.newLink(nowhere{}, ref, s.nextSession()), s.newLink(nowhere{}, own, s.nextSession())
	d.dialed, d.provider, a.provider = true, p.Name(), p.Name()
	d.reason = p.Name() + ": both clients are this daemon's, nothing leaves the process"
	switch {
	case ref.Provider != "":
		d.reason += "; it is the only one that was allowed"
	case len(ref.Without) > 0:
		d.reason += "; it is the best without " + strings.Join(ref.Without, ", ")
	}
	a.reason = d.reason
	d.inbox, a.inbox = newInbox(a), newInbox(d)
	var params []byte
	var err error
	if a.target, params, err = p.Accept(a.session); err != nil {
		return nil, err
	}
	if d.initiator, err = p.Connect(ctx, d.session, "", params); err == nil {
		if err = s.add(a); err == nil {
			if err = s.add(d); err == nil {
				a.open() // so that no frame finds the handler unprepared
				a.start()
				d.start()
				return d, nil
			}
			close(a.opened)
			a.start()
			a.shut(err, false)
		}
		_ = d.initiator.Close()
	}
	s.closeTarget(a)
	return nil, fault.From("dial", err)
}

// inbox is what one end of a link inside the process has been sent and not handed on yet.
type inbox struct {
	other *link // who sends

	mu     sync.Mutex
	wake   sync.Cond
	queue  []wire.Frame
	frames int  // queued or being handed on
	bytes  int  // theirs
	hung   bool // the other end is down: nothing follows
	shut   bool // this end is
}

func newInbox(other *link) *inbox {
	b := &inbox{other: other}
	b.wake.L = &b.mu
	return b
}

// put takes a frame, or says that the bounds are reached.
func (b *inbox) put(f wire.Frame, most, mostBytes int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.frames >= most || b.bytes >= mostBytes {
		return false
	}
	b.queue = append(b.queue, f)
	b.frames++
	b.bytes += size(&f)
	b.wake.Signal()
	return true
}

// hand is Send's for an end of a link inside the process.
func (l *link) hand(f wire.Frame) error {
	if err := l.cause(); err != nil {
		return err
	}
	if l.inbox.other.inbox.put(f, l.s.opt.MaxQueue, l.s.opt.MaxQueueBytes) {
		return nil
	}
	err := fault.New(fault.ResourceExhausted, "peer link", "this node does not take what it sends to itself: %d frames or %d bytes wait",
		l.s.opt.MaxQueue, l.s.opt.MaxQueueBytes)
	err.Peer = l.ref.Node
	l.shut(err, false)
	return l.cause()
}

// hangUp is what an end that is down does inside the process: its goroutine stops, and the other end learns of it behind what it was
// sent before.
func (l *link) hangUp(reason error, flush bool) {
	if l.inbox == nil {
		return
	}
	l.inbox.mu.Lock()
	l.inbox.shut = true
	l.inbox.wake.Signal()
	l.inbox.mu.Unlock()
	b := l.inbox.other.inbox
	b.mu.Lock()
	defer b.mu.Unlock()
	if flush {
		b.queue = append(b.queue, wire.NewError(0, reason))
		b.frames++
	}
	b.hung = true
	b.wake.Signal()
}

// deliver is an end's goroutine.
func (l *link) deliver() {
	defer l.wg.Add(-2) // newLink counted a reader and a writer
	l.busy.Store(false)
	b := l.inbox
	var batch []wire.Frame
	for {
		b.mu.Lock()
		for len(b.queue) == 0 && !b.hung && !b.shut {
			b.wake.Wait()
		}
		if b.shut || len(b.queue) == 0 {
			shut := b.shut
			b.queue, b.frames, b.bytes = nil, 0, 0
			b.mu.Unlock()
			if !shut {
				l.lost(nil, "the other end of this process is closed")
			}
			return
		}
		batch, b.queue = b.queue, batch[:0]
		b.mu.Unlock()
		n := 0
		for i := range batch {
			n += size(&batch[i])
			if err := l.receive(batch[i]); err != nil {
				if err != errDown { //nolint:errorlint // it is never wrapped
					l.shut(err, true)
				}
				break
			}
		}
		b.mu.Lock()
		b.frames -= len(batch)
		b.bytes -= n
		b.mu.Unlock()
		clear(batch)
		if cap(batch) > maxSpare {
			batch = nil
		}
	}
}

// nowhere is the connection of a link that has none.
type nowhere struct{ net.Conn }

func (nowhere) Close() error                     { return nil }
func (nowhere) SetDeadline(time.Time) error      { return nil }
func (nowhere) SetWriteDeadline(time.Time) error { return nil }
func (nowhere) RemoteAddr() net.Addr             { return nil }
