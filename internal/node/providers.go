package node

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peerlink"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/shm"
	"github.com/kvxfer/kvxfer/rdma/tcp"
)

// made is a provider, and who takes its connections at the peers' port; nil: it has none there.
type made struct {
	rdma.Provider
	prefix string // 4 bytes
	lanes  peerlink.LaneServer
}

// maker makes a provider of a node. Its errors say why this host cannot use it.
type maker func(n *Node, clock rdma.Clock) (made, error)

var makers = map[string]maker{"shm": makeShm, "tcp": makeTCP, "verbs": makeVerbs}

// required are providers that work on every host: where one of them fails, something is wrong that the operator must hear of.
var required = map[string]bool{"shm": true, "tcp": true}

func makeShm(n *Node, clock rdma.Clock) (made, error) {
	p, err := shm.New(shm.Options{Path: filepath.Join(n.cfg.StateDir, "shm.sock"), Clock: clock, Logger: n.log})
	return made{Provider: p}, err
}

func makeTCP(n *Node, clock rdma.Clock) (made, error) {
	o := tcp.Options{Clock: clock, Lanes: n.cfg.Lanes, TLSLanes: n.cfg.TLSLanes, Logger: n.log}
	if n.tls != nil {
		o.TLS = n.tls.LaneClient
	}
	p, err := tcp.New(o)
	return made{p, "KVXL", p}, err
}

// startProviders makes the providers that the configuration names, in its order, and gives who takes lanes. One that this host
// cannot use is left out, with the reason, unless it was asked for by name.
func (n *Node) startProviders(clock rdma.Clock) (map[string]peerlink.LaneServer, error) {
	lanes := map[string]peerlink.LaneServer{}
	for _, name := range n.cfg.Providers {
		p, err := n.makers[name](n, clock)
		if err != nil {
			if err = n.leaveOut(name, err); err != nil {
				return nil, err
			}
			continue
		}
		if p.lanes != nil {
			lanes[p.prefix] = p.lanes
		}
		n.providers = append(n.providers, p.Provider)
		n.later(func() { n.logged("provider", p.Close()) })
	}
	return lanes, nil
}

// leaveOut notes that this host cannot use a provider, or gives the error that ends the start.
func (n *Node) leaveOut(name string, err error) error {
	fe := fault.From("start", err)
	if required[name] || fe.Code == fault.InvalidArgument {
		return err
	}
	why := reason(fe)
	if n.cfg.ProvidersNamed {
		return &fault.Error{Code: fault.ConfigInvalid, Op: "start", Field: "providers", Err: err,
			Detail: fmt.Sprintf("%s is named and cannot be used: %s; allowed: a list without %s, or what is missing (kvxfer doctor)", name, why, name)}
	}
	level := slog.LevelInfo
	if fe.Code != fault.NotSupported || n.cfg.RDMA.Chosen() { // there is something to be used, or should be
		level = slog.LevelWarn
	}
	n.log.Log(context.Background(), level, "provider left out", "provider", name, "reason", why)
	n.absent = append(n.absent, wire.Absence{Provider: name, Why: why})
	return nil
}

// reason is an error's text without its code and kept short.
func reason(fe *fault.Error) string {
	switch {
	case fe.Detail == "" && fe.Err != nil:
		return wire.Text(fe.Err.Error())
	case fe.Detail == "":
		return fe.Code.String()
	case fe.Err != nil:
		return wire.Text(fe.Detail + ": " + fe.Err.Error())
	}
	return wire.Text(fe.Detail)
}

func (n *Node) providerNames() []string {
	names := make([]string, len(n.providers))
	for i, p := range n.providers {
		names[i] = p.Name()
	}
	return names
}
