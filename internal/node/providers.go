package node

import (
	"path/filepath"

	"github.com/kvxfer/kvxfer/internal/peerlink"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm"
	"github.com/kvxfer/kvxfer/rdma/tcp"
)

// startProviders makes the providers that the configuration names, in its order, and gives who takes lanes; nil: none does.
func (n *Node) startProviders(clock rdma.Clock) (lanes peerlink.LaneServer, err error) {
	for _, name := range n.cfg.Providers {
		var p rdma.Provider
		switch name {
		case "shm":
			var s *shm.Provider
			if s, err = shm.New(shm.Options{Path: filepath.Join(n.cfg.StateDir, "shm.sock"), Clock: clock, Logger: n.log}); err == nil {
				p = s
			}
		case "tcp":
			var t *tcp.Provider
			o := tcp.Options{Clock: clock, Lanes: n.cfg.Lanes, TLSLanes: n.cfg.TLSLanes, Logger: n.log}
			if n.tls != nil {
				o.TLS = n.tls.LaneClient
			}
			if t, err = tcp.New(o); err == nil {
				p, lanes = t, t
			}
		}
		if err != nil {
			return nil, err
		}
		n.providers = append(n.providers, p)
		n.later(func() { n.logged("provider", p.Close()) })
	}
	return lanes, nil
}

func (n *Node) providerNames() []string {
	names := make([]string, len(n.providers))
	for i, p := range n.providers {
		names[i] = p.Name()
	}
	return names
}
