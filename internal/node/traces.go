package node

import (
	"github.com/kvxfer/kvxfer/internal/telemetry"
	"github.com/kvxfer/kvxfer/xfer"
)

// traces gives the engine the spans that telemetry keeps and the nodes that the directory knows. It implements xfer.Traces.
type traces struct{ n *Node }

// Find implements xfer.Traces.
func (t traces) Find(w xfer.Whose, id string, most int) (xfer.FoundTrace, error) {
	f, err := t.n.tel.Find(telemetry.Whose(w), id, most)
	out := xfer.FoundTrace{TraceID: f.TraceID, Lines: f.Lines, LeftOff: f.LeftOff}
	for _, n := range f.Named {
		out.Named = append(out.Named, xfer.NamedNode(n))
	}
	return out, err
}

// Node implements xfer.Traces.
func (t traces) Node(tenant, name string) (xfer.PeerRef, bool) {
	n, ok := t.n.dir.View().Node(name)
	if !ok {
		return xfer.PeerRef{}, false
	}
	return peerRef(&n, tenant), true
}

// Nodes implements xfer.Traces.
func (t traces) Nodes(tenant string) (out []xfer.PeerRef) {
	for _, n := range t.n.dir.View().Nodes() {
		if n.Name != t.n.cfg.Node {
			out = append(out, peerRef(&n, tenant))
		}
	}
	return out
}
