package node

import (
	"log/slog"
	"net/netip"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peerlink"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// makeVerbs makes the RDMA provider. Its side channel, on which keys of memory travel, is over TLS where the node has certificates,
// whatever is said of lanes.
func makeVerbs(n *Node, clock rdma.Clock) (made, error) {
	if n.cfg.TLSLanes {
		return made{}, fault.New(fault.NotSupported, "verbs provider", "--tls-lanes wants all payload over TLS, and RDMA payload cannot be")
	}
	o := verbsOptions(&n.cfg.RDMA, clock, n.log)
	if n.tls != nil {
		o.TLS = n.tls.LaneClient
	}
	p, err := verbs.New(o)
	if err != nil {
		return made{}, err
	}
	d := p.Describe()
	for i, r := range d.Rails {
		n.log.Info("RDMA port is used", "port", r.Name(), "netdev", r.Netdev, "link_layer", r.LinkLayer.String(), "mtu", r.MTU, "gbps", r.Gbps, "numa", r.NUMA, "windows", d.Windows[i])
	}
	for _, left := range d.Left {
		n.log.Info("RDMA port is not used", "reason", left)
	}
	return made{p, "KVXV", peerlink.LaneFunc(p.ServeSide)}, nil
}

// RDMA is this host's RDMA stack, and which of its ports a configuration allows: for whoever looks at the host without a daemon.
func RDMA(c *config.RDMA) (nic.Host, pick.Options) {
	o := pick.Options{Allow: c.Devices, Deny: c.Exclude}
	if c.PKey != fullPKey {
		o.PKey = c.PKey
	}
	if c.GID != "" {
		o.GID, _ = netip.ParseAddr(c.GID) // the configuration was checked
	}
	return verbs.Host(), o
}

// fullPKey is the default partition with full membership, of which every port has a form.
const fullPKey = 0xffff

func verbsOptions(c *config.RDMA, clock rdma.Clock, log *slog.Logger) verbs.Options {
	o := verbs.Options{Clock: clock, Logger: log, Devices: c.Devices, NoDevices: c.Exclude, GID: c.GID, TrafficClass: c.TrafficClass, ServiceLevel: c.ServiceLevel,
		PKey: c.PKey, Timeout: c.Timeout, Retries: c.Retries, LanesPerRail: c.Lanes, NoWindows: c.NoWindows, NoRelaxedOrdering: c.NoRelaxedOrdering}
	if c.Retries == 0 && c.Timeout != 0 { // of a configuration that was read; of the provider's options 0 is the default
		o.Retries = -1
	}
	return o
}
