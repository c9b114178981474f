package peerlink

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// link is one control connection after its hello. It implements xfer.Link.
//
// Its life: made and added; started (reader and writer run); opened (LinkUp has returned, or will never be called);
// down (Close, or the connection failed: no frame is taken or delivered any more); gone (LinkDown has returned). Lock
// order: Links.mu, then mu.
type link struct {
	s                *Links
	conn             net.Conn
	ref              xfer.PeerRef
	provider, reason string
	session          rdma.SessionID
	dialed           bool
	target           rdma.Target
	initiator        rdma.Initiator // set before LinkUp
	inbox            *inbox         // of a link inside the process; nil: conn is the way

	wg     sync.WaitGroup // reader and writer
	down   chan struct{}  // closed under mu when err is set
	opened chan struct{}
	gone   chan struct{}

	heard atomic.Bool // bytes came since the last tick
	busy  atomic.Bool // nothing reads now, for reasons of this side
	bye   atomic.Bool // the peer takes no new transfers

	// Of the heartbeat's goroutine alone.
	silent int
	pings  uint64

	mu       sync.Mutex
	err      error // why the link is down
	announce bool  // LinkUp was called or will be
	sendq
}

var _ xfer.Link = (*link)(nil)

func (s *Links) newLink(conn net.Conn, ref xfer.PeerRef, session rdma.SessionID) *link {
	l := &link{s: s, conn: conn, ref: ref, session: session, down: make(chan struct{}), opened: make(chan struct{}), gone: make(chan struct{})}
	l.wake.L = &l.mu
	l.wg.Add(2) // before finish can wait for it
	l.busy.Store(true)
	return l
}

func (l *link) key() peerKey { return keyOf(&l.ref) }

// Peer says who is on the other side; Addr is the address that was dialed or that the connection came from.
func (l *link) Peer() xfer.PeerRef { return l.ref }

// Provider gives the fabric and why it was chosen.
func (l *link) Provider() (name, reason string) { return l.provider, l.reason }

// Session names the payload session in this node's provider.
func (l *link) Session() rdma.SessionID { return l.session }

// Initiator is nil on the side that accepted.
func (l *link) Initiator() rdma.Initiator { return l.initiator }

// Target is nil on the side that dialed. It stays usable after LinkDown as a closed target is: Fence gives nil.
func (l *link) Target() rdma.Target { return l.target }

// start sets reader and writer to work, once. Every link that was added is started, also one that is down by then.
func (l *link) start() {
	if l.inbox != nil {
		go l.deliver()
		return
	}
	go l.read()
	go l.write()
	l.begin()
}

// open tells the handler. It reports false when the link went down before: the handler then never hears of it.
func (l *link) open() bool {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		close(l.opened)
		return false
	}
	l.announce = true
	l.mu.Unlock()
	l.s.opt.Logger.Info("peer link up", "peer", l.ref.Node, "epoch", l.ref.Epoch, "tenant", l.ref.Tenant, "addr", l.ref.Addr,
		"session", uint64(l.session), "dialed", l.dialed, "provider", l.provider, "reason", l.reason)
	l.s.opt.Handler.LinkUp(l)
	close(l.opened)
	return true
}

// announced reports whether frames belong to the handler already.
func (l *link) announced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.announce
}

// cause is why the link is down; nil while it is not.
func (l *link) cause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Close ends the link and tells the peer why. LinkDown follows from another goroutine.
func (l *link) Close(reason error) {
	if reason == nil {
		reason = fault.New(fault.Closed, "peer link", "closed")
	}
	l.shut(reason, true)
}

// lost ends the link because the peer or the way to it is gone.
func (l *link) lost(err error, format string, args ...any) {
	e := fault.New(fault.PeerLost, "peer link", format, args...)
	e.Peer, e.Err = l.ref.Node, err
	l.shut(e, false)
}

// shut marks the link down, for its first caller. With flush the peer gets what is queued and the reason, within
// linger, before the connection is closed.
func (l *link) shut(reason error, flush bool) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = reason
	if flush {
		l.append(wire.NewError(0, reason))
		l.flushBy = time.Now().Add(linger)
		_ = l.conn.SetDeadline(l.flushBy)
	} else {
		l.drop()
	}
	close(l.down)
	l.wake.Broadcast()
	l.mu.Unlock()
	if !flush {
		_ = l.conn.Close()
	}
	l.hangUp(reason, flush)
	l.s.forget(l)
	go l.finish(reason)
}

// finish takes the link apart. The session goes first: no byte lands any more while the peer is still being told. Only where
// the node ends in order is it the other way round: then everything has ended and is fenced, and a peer that saw the session
// go before it has read the last DONE would take a transfer that is committed for lost.
func (l *link) finish(reason error) {
	defer l.s.wg.Done()
	if fault.CodeOf(reason) == fault.Closed {
		told := make(chan struct{})
		go func() {
			l.wg.Wait()
			close(told)
		}()
		select {
		case <-told:
		case <-time.After(linger): // a peer that does not read, or a handler that is stuck, holds no session up
		}
	}
	log := l.s.opt.Logger.With("peer", l.ref.Node, "epoch", l.ref.Epoch, "session", uint64(l.session), "dialed", l.dialed)
	l.mu.Lock()
	initiator := l.initiator
	l.mu.Unlock()
	if initiator != nil {
		if err := initiator.Close(); err != nil {
			log.Error("session close failed", "error", err)
		}
	}
	if l.target != nil {
		if err := l.target.Close(); err != nil {
			log.Error("session close failed", "error", err)
		}
	}
	<-l.opened
	l.wg.Wait()
	_ = l.conn.Close()
	l.mu.Lock()
	announced := l.announce
	l.mu.Unlock()
	if announced {
		log.Info("peer link down", "error", reason)
		l.s.opt.Handler.LinkDown(l, reason)
	}
	l.s.remove(l)
	close(l.gone)
}

// tick is called once in every HeartbeatEvery.
func (l *link) tick() {
	if l.inbox != nil { // nothing is lost on a way that is not there
		return
	}
	if l.heard.Swap(false) || l.busy.Load() {
		l.silent = 0
	} else if l.silent++; l.silent >= l.s.opt.HeartbeatMisses {
		l.lost(nil, "heartbeat: nothing heard for %d x %s", l.silent, l.s.opt.HeartbeatEvery)
		return
	}
	l.mu.Lock()
	if l.err == nil && l.frames == 0 {
		l.pings++
		l.append(wire.Frame{Kind: wire.KindPing, Request: PingBit | l.pings})
	}
	l.sendLocked()
}
