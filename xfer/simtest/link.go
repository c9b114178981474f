package simtest

import (
	"bytes"
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/simfabric"
	"github.com/kvxfer/kvxfer/xfer"
)

// Dial implements xfer.Dialer: the link to a peer while it lives, else a new one. A peer that is paused answers when it
// goes on.
func (n *Node) Dial(ctx context.Context, ref xfer.PeerRef) (xfer.Link, error) {
	var peer *Node
	n.w.mu.Lock()
	for _, x := range n.w.nodes {
		if x.Name == ref.Node {
			peer = x
		}
	}
	n.w.mu.Unlock()
	switch {
	case peer == nil || n.dead.Load():
		return nil, &fault.Error{Code: fault.PeerUnreachable, Op: "dial", Peer: ref.Node}
	case peer.Epoch != ref.Epoch:
		return nil, &fault.Error{Code: fault.StaleEpoch, Op: "dial", Peer: ref.Node}
	}
	for _, l := range n.w.liveLinks() {
		if l.node == n && l.other.node == peer && l.init != nil {
			return l, nil
		}
	}
	src, dst := rdma.SessionID(n.w.ids.Add(1)), rdma.SessionID(n.w.ids.Add(1))
	target, params, err := peer.Provider.Accept(dst)
	if err != nil {
		return nil, err
	}
	init, err := n.Provider.Connect(ctx, src, peer.Name, params)
	if err != nil {
		_ = target.Close()
		return nil, err
	}
	out := newLink(n, xfer.PeerRef{Node: peer.Name, Epoch: peer.Epoch, Tenant: ref.Tenant}, src)
	in := newLink(peer, xfer.PeerRef{Node: n.Name, Epoch: n.Epoch, Tenant: ref.Tenant}, dst)
	out.other, in.other, out.init, in.target = in, out, init, target
	for _, l := range []*link{in, out} {
		l.pipe = n.w.Fabric.NewPipe(l.node.Provider, l.other.node.Provider, l.other.receive)
		l.node.Engine.LinkUp(l)
	}
	for _, l := range []*link{in, out} {
		n.w.wg.Go(l.deliver)
	}
	n.w.mu.Lock()
	n.w.links = append(n.w.links, out, in)
	n.w.mu.Unlock()
	return out, nil
}

// link is one end of a control connection. It implements xfer.Link.
type link struct {
	node    *Node
	other   *link
	peer    xfer.PeerRef
	session rdma.SessionID
	init    rdma.Initiator
	target  rdma.Target
	pipe    *simfabric.Pipe // to the other end

	mu    sync.Mutex
	queue [][]byte // received and not handled
	wake  chan struct{}
	done  chan struct{}
	once  sync.Once
}

func newLink(n *Node, peer xfer.PeerRef, id rdma.SessionID) *link {
	return &link{node: n, peer: peer, session: id, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

func (l *link) Peer() xfer.PeerRef              { return l.peer }
func (l *link) Provider() (name, reason string) { return l.node.Provider.Name(), "the only one" }
func (l *link) Session() rdma.SessionID         { return l.session }
func (l *link) Initiator() rdma.Initiator       { return l.init }
func (l *link) Target() rdma.Target             { return l.target }

func (l *link) closed() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// Send encodes a frame and lets it travel.
func (l *link) Send(f wire.Frame) error {
	if l.closed() || !l.pipe.Send(wire.Append(nil, f)) {
		return fault.New(fault.PeerLost, "send", "the link is down")
	}
	return nil
}

// receive is called by the fabric. An empty message is the end of the stream.
func (l *link) receive(b []byte) {
	l.mu.Lock()
	l.queue = append(l.queue, b)
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// deliver hands frames to the engine, one at a time.
func (l *link) deliver() {
	for {
		select {
		case <-l.done:
			return
		case <-l.wake:
		}
		l.mu.Lock()
		queue := l.queue
		l.queue = nil
		l.mu.Unlock()
		for _, b := range queue {
			if l.closed() {
				return
			}
			if len(b) == 0 {
				l.Close(fault.New(fault.PeerLost, "link", "the peer closed it"))
				return
			}
			f, err := wire.ReadFrame(bytes.NewReader(b), wire.PeerLimits)
			if err != nil {
				l.Close(err)
				return
			}
			l.node.Engine.LinkFrame(l, f)
		}
	}
}

// Close ends this end of the link. The other one hears of it behind the frames that were sent before.
func (l *link) Close(reason error) {
	l.once.Do(func() {
		close(l.done)
		l.pipe.Send(nil)
		if l.init != nil {
			_ = l.init.Close()
		} else {
			_ = l.target.Close()
		}
		l.node.w.wg.Go(func() { l.node.Engine.LinkDown(l, reason) })
	})
}

// cut loses the connection: no frame arrives any more, and each end notices by its payload session.
func (l *link) cut() {
	l.pipe.Cut()
	l.other.pipe.Cut()
	if l.init != nil {
		l.node.w.Fabric.Cut(l.init)
	} else {
		l.node.w.Fabric.Cut(l.target)
	}
}
