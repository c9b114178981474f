package node

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// makeVerbs makes the RDMA provider.
func makeVerbs(*Node, rdma.Clock) (made, error) {
	return made{}, fault.New(fault.NotSupported, "verbs", "this build has no provider for RDMA")
}
