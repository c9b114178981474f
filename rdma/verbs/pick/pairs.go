package pick

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// PeerRail is a rail as its owner tells it to others.
type PeerRail struct {
	Name      string // "device:port", once a peer
	NUMA      int    // -1: unknown
	LinkLayer nic.LinkLayer
	MTU       int // bytes; 0: unknown
	Gbps      float64
	LID       uint16        // InfiniBand
	GIDs      []nic.GIDInfo // those that may be used, best first; Netdev means nothing here
}

// Told is what the owner of a rail tells others of it.
func (r *Rail) Told() PeerRail {
	return PeerRail{Name: r.Name(), NUMA: r.NUMA, LinkLayer: r.LinkLayer, MTU: r.MTU, Gbps: r.Gbps, LID: r.LID, GIDs: r.GIDs}
}

// Pair is a rail here and one of the peer's, joined.
type Pair struct {
	Local    Rail
	Peer     PeerRail
	LocalGID nic.GIDInfo
	PeerGID  nic.GIDInfo
	MTU      int    // the lower of both sides'; 0: neither knows
	Shared   bool   // one of the rails is in another pair too, because the other side has fewer
	Why      string // in words, why they can be joined
}

// Reach says whether a route leads from a GID of a rail here to an address of the peer's, through the rail's own interface.
type Reach func(from Rail, gid nic.GIDInfo, to netip.Addr) bool

// Pairs joins rails with a peer's. Names must be different on each side. It returns the pairs in the order of the names here, and why
// each rail that is in no pair is in none, in words, those here first. Of each side the first MaxRails by name are looked at.
func Pairs(local []Rail, peer []PeerRail, reach Reach) ([]Pair, []string) {
	local, peer = slices.Clone(local), slices.Clone(peer)
	slices.SortFunc(local, func(a, b Rail) int { return cmp.Or(nic.CompareNames(a.Device, b.Device), a.Port-b.Port) })
	slices.SortFunc(peer, func(a, b PeerRail) int { return nic.CompareNames(a.Name, b.Name) })
	var left []string
	if len(local) > MaxRails {
		left, local = append(left, fmt.Sprintf("%d rails from %s on: more than %d are not used", len(local)-MaxRails, local[MaxRails].Name(), MaxRails)), local[:MaxRails]
	}
	var leftThere []string
	if len(peer) > MaxRails {
		leftThere, peer = append(leftThere, fmt.Sprintf("%d rails of the peer from %s on: more than %d are not used", len(peer)-MaxRails, peer[MaxRails].Name, MaxRails)), peer[:MaxRails]
	}
	t := newTable(local, peer, reach)
	chosen := t.assign()
	t.share(&chosen)
	slices.SortFunc(chosen, func(a, b choice) int { return cmp.Or(a.here-b.here, a.there-b.there) })
	here, there := make([]int, len(local)), make([]int, len(peer))
	for _, c := range chosen {
		here[c.here]++
		there[c.there]++
	}
	out := make([]Pair, 0, len(chosen))
	for _, c := range chosen {
		w := t.ways[c.here][c.there]
		l, p := local[c.here], peer[c.there]
		out = append(out, Pair{Local: l, Peer: p, LocalGID: w.own, PeerGID: w.other, MTU: lower(l.MTU, p.MTU), Shared: here[c.here] > 1 || there[c.there] > 1, Why: w.why})
	}
	for i := range local {
		if here[i] == 0 {
			left = append(left, whyAlone(local[i].Name(), local[i].LinkLayer, local[i].GIDs, "the peer's", seen(peer), t.reachable(i, -1)))
		}
	}
	for j := range peer {
		if there[j] == 0 {
			left = append(left, whyAlone("the peer's "+peer[j].Name, peer[j].LinkLayer, peer[j].GIDs, "those here", seenHere(local), t.reachable(-1, j)))
		}
	}
	return out, append(left, leftThere...)
}

// lower is the lower of two MTUs of which 0 is unknown.
func lower(a, b int) int {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// How two rails can be joined, best first.
const (
	bySubnet = iota
	byRoute
	byLink // link-local addresses: nobody can tell whether they are on one link
	never
)

// way is how one rail here reaches one of the peer's.
type way struct {
	kind       int
	own, other nic.GIDInfo
	why        string
}

// table has the way of each rail here (row) to each of the peer's (column).
type table struct {
	ways        [][]way
	numa, numaP []int
}

func newTable(local []Rail, peer []PeerRail, reach Reach) *table {
	t := &table{ways: make([][]way, len(local)), numa: make([]int, len(local)), numaP: make([]int, len(peer))}
	for j := range peer {
		t.numaP[j] = peer[j].NUMA
	}
	for i := range local {
		t.numa[i] = local[i].NUMA
		t.ways[i] = make([]way, len(peer))
		for j := range peer {
			t.ways[i][j] = find(&local[i], &peer[j], reach)
		}
	}
	return t
}

// find looks for the best way between two rails.
func find(l *Rail, p *PeerRail, reach Reach) way {
	if l.LinkLayer != p.LinkLayer {
		return way{kind: never}
	}
	if l.LinkLayer == nic.InfiniBand {
		for _, own := range l.GIDs {
			for _, other := range p.GIDs {
				if sameSubnetPrefix(own, other) && p.LID != 0 && l.LID != 0 {
					return way{bySubnet, own, other, fmt.Sprintf("both in the InfiniBand subnet %x", subnetPrefix(own))}
				}
			}
		}
		return way{kind: never}
	}
	routes := way{kind: never}
	for _, own := range l.GIDs {
		for _, other := range p.GIDs {
			a, b := own.Addr(), other.Addr()
			if a.Is4() != b.Is4() || other.Type != nic.RoCEv2 || (rank(own) == rankLinkLocal) != (rank(other) == rankLinkLocal) {
				continue
			}
			if rank(own) != rankLinkLocal {
				if n, yes := subnet(l.Networks, a, b); yes {
					return way{bySubnet, own, other, fmt.Sprintf("%s and %s are both in %s", a, b, n)}
				}
			}
			// Of the routes the first is taken: GIDs come best first. Asking costs a system call, so only while none is known.
			if routes.kind != never || reach == nil || !reach(*l, own, b) {
				continue
			}
			routes = way{byRoute, own, other, fmt.Sprintf("a route leads from %s to %s", a, b)}
			if rank(own) == rankLinkLocal {
				routes.kind, routes.why = byLink, fmt.Sprintf("%s and %s are link-local; whether they are on one link is not known", a, b)
			}
		}
	}
	return routes
}

// subnet finds the own address's network if the other one is in it too.
func subnet(networks []netip.Prefix, own, other netip.Addr) (netip.Prefix, bool) {
	for _, n := range networks {
		if n.Addr() == own && n.Contains(other) {
			return n.Masked(), true
		}
	}
	return netip.Prefix{}, false
}

// reachable says whether any way leads from row i, or to column j; -1 is all.
func (t *table) reachable(i, j int) bool {
	for a := range t.ways {
		for b := range t.ways[a] {
			if (i < 0 || a == i) && (j < 0 || b == j) && t.ways[a][b].kind != never {
				return true
			}
		}
	}
	return false
}

// side is what the reasons tell of the other side's rails.
type side struct {
	layers []nic.LinkLayer
	addrs  []netip.Addr
	gids   []nic.GIDInfo
}

func seen(rails []PeerRail) (s side) {
	for _, r := range rails {
		s.add(r.LinkLayer, r.GIDs)
	}
	return s
}

func seenHere(rails []Rail) (s side) {
	for _, r := range rails {
		s.add(r.LinkLayer, r.GIDs)
	}
	return s
}

func (s *side) add(l nic.LinkLayer, gids []nic.GIDInfo) {
	s.layers = append(s.layers, l)
	s.gids = append(s.gids, gids...)
	for _, g := range gids {
		s.addrs = append(s.addrs, g.Addr())
	}
}

// whyAlone says why a rail is in no pair.
func whyAlone(name string, layer nic.LinkLayer, gids []nic.GIDInfo, whose string, s side, reachable bool) string {
	mine := side{}
	mine.add(layer, gids)
	switch {
	case reachable:
		return name + ": others are joined within their subnets, and it could only be through a router"
	case len(s.layers) == 0:
		return name + ": there are no rails to join it with"
	case !slices.Contains(s.layers, layer):
		return fmt.Sprintf("%s: it is %s, and %s are not", name, layer, whose)
	case layer == nic.InfiniBand:
		return fmt.Sprintf("%s: none of %s is in its InfiniBand subnet; ways between subnets are not used", name, whose)
	case !versions(mine.addrs, s.addrs):
		return fmt.Sprintf("%s: it has %s, and %s have %s: no IP version in common", name, list(mine.addrs), whose, list(s.addrs))
	}
	return fmt.Sprintf("%s: no route between %s and any of %s: %s", name, list(mine.addrs), whose, list(s.addrs))
}

// versions says whether two lists have an IP version in common.
func versions(a, b []netip.Addr) bool {
	for _, x := range a {
		for _, y := range b {
			if x.Is4() == y.Is4() {
				return true
			}
		}
	}
	return false
}

// list shows a few addresses.
func list(addrs []netip.Addr) string {
	const most = 8
	var out []string
	for i, a := range addrs {
		if i == most {
			out = append(out, "...")
			break
		}
		out = append(out, a.String())
	}
	return cmp.Or(strings.Join(out, ", "), "no address")
}
