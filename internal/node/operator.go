package node

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Option changes how a node is started.
type Option func(*Node)

// WithLogLevel gives the node the level of its log to change at run time. Without it LOG_LEVEL is NotSupported: the log
// belongs to the program that the node runs in.
func WithLogLevel(v *slog.LevelVar) Option { return func(n *Node) { n.level = v } }

// operator is the node as the people's side of the local socket sees it.
type operator struct{ *Node }

// Inspect implements localapi.Operator.
func (n operator) Inspect(tenant string, q wire.Inspect) (info wire.InspectInfo, array []byte, err error) {
	switch q.What {
	case wire.InspectNodes:
		rows, next := page(&q, n.nodeRows(), func(r *wire.NodeRow) string { return r.Node })
		array, err = wire.PackRows(rows)
		return wire.InspectInfo{Next: next, Stale: !n.dir.View().Connected()}, array, err
	case wire.InspectCaches:
		rows, next := page(&q, n.cacheRows(tenant, q.Node), func(r *wire.CacheRow) string { return r.Tenant + "/" + r.Node + "/" + r.Cache })
		array, err = wire.PackRows(rows)
		return wire.InspectInfo{Next: next, Stale: !n.dir.View().Connected()}, array, err
	}
	return n.engine.Inspect(tenant, q)
}

// page takes the rows behind the cursor, which is the name of the last row before: rows come and go, names keep their order.
func page[T any](q *wire.Inspect, rows []T, name func(*T) string) (out []T, next string) {
	for i := range rows {
		if name(&rows[i]) <= q.After {
			continue
		}
		if len(out) == q.Rows() {
			return out, name(&out[len(out)-1])
		}
		out = append(out, rows[i])
	}
	return out, ""
}

func (n operator) nodeRows() []wire.NodeRow {
	view := n.dir.View()
	nodes := view.Nodes()
	rows := make([]wire.NodeRow, len(nodes))
	for i, x := range nodes {
		rows[i] = wire.NodeRow{Node: x.Name, Own: x.Name == n.cfg.Node && x.Epoch == n.info.Epoch, Epoch: x.Epoch, PeerAddr: x.PeerAddr, HTTPAddr: x.HTTPAddr,
			Version: x.Version, MinProtocol: x.Protocol.Min, MaxProtocol: x.Protocol.Max, Providers: x.Providers, MemoryKinds: x.MemoryKinds,
			Draining: x.Draining, StartedMs: x.StartedUnixMs}
		if told, ok := view.Told(x.Name); ok {
			rows[i].ToldMs = max(0, time.Since(told).Milliseconds())
		}
	}
	return rows
}

// cacheRows lists caches by tenant, then node, then name: the order of their cursors.
func (n operator) cacheRows(tenant, node string) []wire.CacheRow {
	view := n.dir.View()
	tenants := []string{tenant}
	if tenant == "" {
		tenants = view.Tenants()
	}
	var rows []wire.CacheRow
	for _, t := range tenants {
		for _, c := range view.Caches(t) {
			if node == "" || node == c.Node {
				rows = append(rows, cacheRow(&c))
			}
		}
	}
	return rows
}

// maxLayout bounds what of a layout is passed on: it is another node's text.
const maxLayout = 4 << 10

func cacheRow(c *registry.Cache) wire.CacheRow {
	row := wire.CacheRow{Node: c.Node, Tenant: c.Tenant, Cache: c.Name, Model: c.Model, Revision: c.Revision, Compat: c.Compat, MemoryKind: c.MemoryKind, NUMANode: c.NUMANode,
		Blocks: c.NumBlocks, Bytes: c.Bytes, Instance: c.Instance, Rank: c.Rank, Ranks: c.Ranks, Layout: json.RawMessage("null"), LayoutText: "unknown"}
	if len(c.Layout) > 0 && len(c.Layout) <= maxLayout {
		row.Layout = c.Layout
		var l layout.Layout
		if json.Unmarshal(c.Layout, &l) == nil && l.Validate() == nil {
			row.LayoutText = l.String()
		}
	}
	return row
}

// Drain implements localapi.Operator: the first half of what SIGTERM does. It may be asked again, to wait or to look.
func (n operator) Drain(ctx context.Context, q wire.Drain) (wire.DrainInfo, error) {
	n.stopGranting(ctx)
	if q.Wait {
		n.engine.Idle(ctx)
	}
	st := n.engine.Stats()
	return wire.DrainInfo{Leases: st.Leases, Transfers: st.Transfers, Clients: st.Clients}, nil
}

// stopGranting says everywhere that the node takes nothing new, once: to whoever balances load, to the registry, to peers.
func (n *Node) stopGranting(ctx context.Context) {
	n.stopped.Do(func() {
		n.setReady(fault.New(fault.Draining, "ready", "the node is draining"))
		say, cancel := context.WithTimeout(ctx, time.Second)
		n.logged("registry", n.dir.SetDraining(say, true))
		cancel()
		n.links.Drain()
		n.engine.StopGranting()
		n.log.Info("draining: nothing new is granted")
	})
}

// LogLevel implements localapi.Operator.
func (n operator) LogLevel(level string) (info wire.LogLevelInfo, err error) {
	if n.level == nil {
		return info, fault.New(fault.NotSupported, "log_level", "the program that this node runs in decides on its log")
	}
	info.Was = strings.ToLower(n.level.Level().String())
	info.Level = info.Was
	if level == "" {
		return info, nil
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return info, fault.Invalid("log_level", "level", "%q, allowed %s", level, strings.Join(wire.LogLevels, ", "))
	}
	info.Level = level
	// Said under the more talkative of the two: who reads a log that ends learns why.
	was := n.level.Level()
	n.level.Set(min(l, was))
	if l != was {
		n.log.Warn("log level changed", "level", info.Level, "was", info.Was)
	}
	n.level.Set(l)
	return info, nil
}
