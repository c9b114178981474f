package pick

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// MaxRails is how many rails of a side are looked at.
const MaxRails = 64

// Options limits what is used. The zero value allows everything.
type Options struct {
	// Allow and Deny are patterns of path.Match: "mlx5_0" and "mlx5_*" are whole devices, "mlx5_0:1" is a port. An empty Allow
	// allows all; what is in both is denied.
	Allow, Deny []string
	// GID allows only ports with this address, and no other GID of them. The zero value: any.
	GID netip.Addr
	// PKey allows only ports with this partition key (its membership bit is not compared). 0: the default partition, and where
	// a port is not in it whatever its first key is.
	PKey uint16
	// Networks are the addresses of this network namespace's interfaces, by name, each with the length of its subnet's prefix. A
	// GID whose address is not there is not used. Nil: nothing is known, and every GID is used.
	Networks map[string][]netip.Prefix
}

// Check finds patterns that cannot be read. The error names the field, allow or deny.
func (o *Options) Check() error {
	for field, list := range map[string][]string{"deny": o.Deny, "allow": o.Allow} {
		for _, p := range list {
			if _, err := path.Match(p, ""); err != nil || p == "" {
				return fault.Invalid("verbs", field, "%q is no pattern of devices; allowed are names like mlx5_0, ports like mlx5_0:1, and *, ? and [a-z] in them", p)
			}
		}
	}
	return nil
}

// Rail is a port that may be used.
type Rail struct {
	Device    string
	Port      int
	NUMA      int // -1: unknown
	LinkLayer nic.LinkLayer
	MTU       int // bytes; 0: unknown
	Gbps      float64
	LID       uint16 // InfiniBand
	PKeyIndex uint16
	Netdev    string
	GIDs      []nic.GIDInfo // those that may be used, best first
	// Networks are the addresses of its GIDs with their subnets' prefix lengths; of a GID without one only routes are known.
	Networks []netip.Prefix
}

// Name is "device:port".
func (r *Rail) Name() string { return fmt.Sprintf("%s:%d", r.Device, r.Port) }

// Refusal is a port, or a device of port 0, that is not used.
type Refusal struct {
	Device string
	Port   int
	Why    string
	Remedy string // what would make it a rail; "" where it is as somebody wanted it, or nothing is plugged in
}

func (r Refusal) String() string {
	if r.Port == 0 {
		return r.Device + ": " + r.Why
	}
	return fmt.Sprintf("%s:%d: %s", r.Device, r.Port, r.Why)
}

// Local finds the rails among a host's devices, in the order of their names, and says why every other port is none.
func Local(devs []nic.DeviceInfo, o Options) (rails []Rail, left []Refusal) {
	for _, d := range devs {
		if len(d.Ports) == 0 {
			left = append(left, Refusal{Device: d.Name, Why: "it has no ports"})
		}
		for _, p := range d.Ports {
			r := Rail{Device: d.Name, Port: p.Port, NUMA: d.NUMA, LinkLayer: p.LinkLayer, MTU: p.MTU, Gbps: p.Gbps, LID: p.LID, Netdev: p.Netdev}
			no := Refusal{Device: d.Name, Port: p.Port, Why: o.refuses(&r)}
			if no.Why == "" {
				no.Why, no.Remedy = o.fill(&r, p)
			}
			if no.Why != "" {
				left = append(left, no)
				continue
			}
			rails = append(rails, r)
		}
	}
	slices.SortFunc(rails, func(a, b Rail) int { return cmp.Or(nic.CompareNames(a.Device, b.Device), a.Port-b.Port) })
	slices.SortFunc(left, func(a, b Refusal) int { return cmp.Or(nic.CompareNames(a.Device, b.Device), a.Port-b.Port) })
	return rails, left
}

// Denies says why the lists of allowed and denied devices do not let a port through; "" where they do. It needs no more of a device
// than its name, so it can be asked before the device is opened.
func (o *Options) Denies(device string, port int) (why string) {
	return o.refuses(&Rail{Device: device, Port: port})
}

// refuses says why the lists do not let a port through; "" where they do. A pattern that cannot be read (Check) denies everything:
// what somebody wanted to keep out must not be used because of a typing error.
func (o *Options) refuses(r *Rail) string {
	if o.Check() != nil {
		return "the patterns of allowed or denied devices cannot be read"
	}
	if p := matching(o.Deny, r); p != "" {
		return "denied by " + p
	}
	if len(o.Allow) > 0 && matching(o.Allow, r) == "" {
		return "not among the allowed: " + strings.Join(o.Allow, ", ")
	}
	return ""
}

// matching is the first pattern that means the port; "" where none does.
func matching(patterns []string, r *Rail) string {
	for _, p := range patterns {
		name := r.Device
		if strings.Contains(p, ":") {
			name = r.Name()
		}
		if yes, err := path.Match(p, name); err == nil && yes {
			return p
		}
	}
	return ""
}

// fill completes a rail from its port, or says why it cannot be one, and what would help.
func (o *Options) fill(r *Rail, p nic.PortInfo) (why, remedy string) {
	switch {
	case p.LinkLayer != nic.Ethernet && p.LinkLayer != nic.InfiniBand:
		return "its link layer is unknown", ""
	case !p.Active:
		return "the port is " + cmp.Or(p.State, "in an unknown state") + ", not ACTIVE", ""
	case p.LinkLayer == nic.InfiniBand && p.LID == 0:
		return "it has no LID: no subnet manager has found it yet", "start a subnet manager (opensm) in the fabric, or look why it does not see the port"
	}
	var found bool
	if r.PKeyIndex, found = partition(p.PKeys, o.PKey); !found {
		return fmt.Sprintf("it is not in partition 0x%04x; its keys are %s", o.PKey, keys(p.PKeys)), ""
	}
	if why, remedy = o.gids(r, p); why != "" {
		return why, remedy
	}
	for _, g := range r.GIDs {
		for _, n := range o.Networks[g.Netdev] {
			if n.Addr() == g.Addr() && !slices.Contains(r.Networks, n) {
				r.Networks = append(r.Networks, n)
			}
		}
	}
	return "", ""
}

// fullMember is the bit of a partition key that says so; keys are of one partition whatever it is.
const fullMember = 0x8000

// partition finds a key's index. A wanted one must be there; without one the default partition's is best.
func partition(table []uint16, want uint16) (index uint16, found bool) {
	key := cmp.Or(want, 0xffff)
	best := -1
	for i, k := range table {
		if k|fullMember == key|fullMember && k != 0 && (best < 0 || table[best]&fullMember == 0 && k&fullMember != 0) {
			best = i // a full member reaches everybody, a limited one full members only
		}
	}
	switch {
	case best >= 0:
		return uint16(best), true
	case want != 0:
		return 0, false
	}
	first := slices.IndexFunc(table, func(k uint16) bool { return k != 0 })
	return uint16(max(first, 0)), true
}

func keys(table []uint16) string {
	var out []string
	for _, k := range table {
		if k != 0 {
			out = append(out, fmt.Sprintf("0x%04x", k))
		}
	}
	return cmp.Or(strings.Join(out, ", "), "not known")
}

// What helps where there is no GID to use.
const (
	remedyAddress   = "give its interface an address and bring it up (ip address add, ip link set up)"
	remedyNamespace = "run in the network namespace of its interface (hostNetwork, --network host), or give this one an interface of the device with an address"
)

// gids chooses the GIDs that may be used and says why there is none, and what would help.
func (o *Options) gids(r *Rail, p nic.PortInfo) (why, remedy string) {
	var v1, elsewhere, foreign int
	for _, g := range p.GIDs {
		switch {
		case g.Type == nic.RoCEv1:
			v1++
		case o.GID.IsValid() && g.Addr() != o.GID.Unmap():
			elsewhere++
		case p.LinkLayer == nic.Ethernet && !o.here(g):
			foreign++
		default:
			r.GIDs = append(r.GIDs, g)
		}
	}
	slices.SortStableFunc(r.GIDs, func(a, b nic.GIDInfo) int { return cmp.Or(rank(a)-rank(b), a.Index-b.Index) })
	switch {
	case len(r.GIDs) > 0:
		return "", ""
	case len(p.GIDs) == 0 && p.LinkLayer == nic.Ethernet && p.Netdev == "":
		return "its GID table is empty and its network interface is not in this network namespace (rdma system, rdma link)", remedyNamespace
	case len(p.GIDs) == 0 && p.LinkLayer == nic.Ethernet:
		return "its GID table is empty: interface " + p.Netdev + " has no address, or is down", remedyAddress
	case len(p.GIDs) == 0:
		return "its GID table is empty", "look at the port in ibv_devinfo -v, and at the kernel's log"
	case elsewhere > 0:
		return fmt.Sprintf("it does not have the GID %s", o.GID), ""
	case foreign > 0:
		return "no GID of it has an address of this network namespace's interfaces", remedyNamespace
	}
	return fmt.Sprintf("it has GIDs of RoCE v1 only (%d), which is not used", v1), "use a card and a driver with RoCE v2"
}

// here says whether a GID's address is this network namespace's. A link-local GID is made from the card's address, whether or not
// the interface has taken that one too.
func (o *Options) here(g nic.GIDInfo) bool {
	if o.Networks == nil {
		return true
	}
	addrs, there := o.Networks[g.Netdev]
	if a := g.Addr(); a.Is6() && a.IsLinkLocalUnicast() {
		return there
	}
	return slices.ContainsFunc(addrs, func(n netip.Prefix) bool { return n.Addr() == g.Addr() })
}

// Ranks of GIDs, best first.
const (
	rankIPv4 = iota
	rankGlobal
	rankUniqueLocal
	rankLinkLocal
)

func rank(g nic.GIDInfo) int {
	if g.Type == nic.GIDInfiniBand {
		return 0
	}
	switch a := g.Addr(); {
	case a.IsLinkLocalUnicast(): // 169.254.0.0/16 too
		return rankLinkLocal
	case a.Is4():
		return rankIPv4
	case a.IsPrivate():
		return rankUniqueLocal
	}
	return rankGlobal
}

// subnetPrefix is an InfiniBand GID's.
func subnetPrefix(g nic.GIDInfo) []byte { return g.GID[:8] }

func sameSubnetPrefix(a, b nic.GIDInfo) bool { return bytes.Equal(subnetPrefix(a), subnetPrefix(b)) }
