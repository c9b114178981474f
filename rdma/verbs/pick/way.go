package pick

import (
	"fmt"
	"net/netip"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Way tells of a pair, for people.
func (p *Pair) Way() rdma.Way {
	return rdma.Way{Local: p.Local.Name(), Peer: p.Peer.Name, LocalAddr: address(p.LocalGID, p.Local.LID), PeerAddr: address(p.PeerGID, p.Peer.LID),
		MTU: p.MTU, Shared: p.Shared, Why: p.Why}
}

// address is what a GID is called: on Ethernet the IP address that it is, on InfiniBand with the LID, which packets go by.
func address(g nic.GIDInfo, lid uint16) string {
	if g.Type == nic.GIDInfiniBand {
		return fmt.Sprintf("LID %d, %s", lid, netip.AddrFrom16(g.GID))
	}
	return g.Addr().String()
}
