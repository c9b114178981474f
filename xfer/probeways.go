package xfer

import (
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// ways is what a provider says of the ways that it chose to a node; nothing where no link of this node's goes there over it, or
// the provider has nothing to choose. Of several links the newest one counts.
func (e *Engine) ways(ref PeerRef, provider string) (out []wire.ProbeWay, unused []string) {
	var teller rdma.WaysTeller
	var newest rdma.SessionID
	e.mu.Lock()
	for l, ls := range e.links {
		if t, tells := l.Initiator().(rdma.WaysTeller); tells && ls.provider == provider && l.Peer().Node == ref.Node && l.Session() >= newest {
			teller, newest = t, l.Session()
		}
	}
	e.mu.Unlock()
	if teller == nil {
		return nil, nil
	}
	ways, unused := teller.Ways()
	for _, w := range ways {
		out = append(out, wire.ProbeWay{Local: w.Local, Peer: w.Peer, LocalAddr: w.LocalAddr, PeerAddr: w.PeerAddr, MTU: w.MTU, Shared: w.Shared, Why: w.Why})
	}
	return out, unused
}
