package verbs

import (
	"cmp"
	"slices"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/ibv"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Host is this host's RDMA stack, libibverbs, as New uses it by itself.
func Host() nic.Host { return ibv.New() }

var _ rdma.WaysTeller = (*initiator)(nil)

// Ways tells which ports the session joined, also those whose lanes are down now, and which ports of both sides it does not use.
func (i *initiator) Ways() (ways []rdma.Way, unused []string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, r := range i.rails {
		ways = append(ways, r.pair.Way())
	}
	slices.SortStableFunc(ways, func(a, b rdma.Way) int {
		return cmp.Or(nic.CompareNames(a.Local, b.Local), nic.CompareNames(a.Peer, b.Peer))
	})
	return ways, append(slices.Clone(i.p.left), i.unpaired...)
}
