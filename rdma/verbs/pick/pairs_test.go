package pick

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs/sysfstest"
)

// rail has a GID of each address with prefix length.
func rail(name string, numa int, addrs ...string) Rail {
	r := Rail{Device: name, Port: 1, NUMA: numa, LinkLayer: nic.Ethernet, MTU: 4096, Gbps: 100, Netdev: "eth-" + name}
	for i, a := range addrs {
		p := netip.MustParsePrefix(a)
		r.GIDs = append(r.GIDs, sysfstest.GID(i, p.Addr().String(), r.Netdev))
		r.Networks = append(r.Networks, p)
	}
	return r
}

func told(rails ...Rail) (out []PeerRail) {
	for i := range rails {
		out = append(out, rails[i].Told())
	}
	return out
}

func nowhere(Rail, nic.GIDInfo, netip.Addr) bool { return false }

func anywhere(Rail, nic.GIDInfo, netip.Addr) bool { return true }

// joined shows pairs as "mlx5_0 10.0.0.1>10.0.0.2 mlx5_0".
func joined(pairs []Pair) (out []string) {
	for _, p := range pairs {
		s := fmt.Sprintf("%s %s>%s %s", p.Local.Device, p.LocalGID.Addr(), p.PeerGID.Addr(), strings.TrimSuffix(p.Peer.Name, ":1"))
		if p.Shared {
			s += " shared"
		}
		out = append(out, s)
	}
	return out
}

func TestPairs(t *testing.T) {
	for _, x := range []struct {
		what  string
		local []Rail
		peer  []Rail
		reach Reach
		want  []string
	}{
		{"one", []Rail{rail("a", 0, "10.0.0.1/24")}, []Rail{rail("b", 0, "10.0.0.2/24")}, nowhere, []string{"a 10.0.0.1>10.0.0.2 b"}},
		{"subnet before route", []Rail{rail("a", 0, "10.0.0.1/24", "2001:db8::1/64")}, []Rail{rail("b", 0, "10.0.1.2/24", "2001:db8::2/64")}, anywhere, []string{"a 2001:db8::1>2001:db8::2 b"}},
		{"IPv4 before IPv6", []Rail{rail("a", 0, "10.0.0.1/24", "2001:db8::1/64")}, []Rail{rail("b", 0, "10.0.0.2/24", "2001:db8::2/64")}, anywhere, []string{"a 10.0.0.1>10.0.0.2 b"}},
		{"IPv6 alone", []Rail{rail("a", 0, "2001:db8::1/64", "fe80::1/64")}, []Rail{rail("b", 0, "2001:db8:1::2/64", "fe80::2/64")}, anywhere, []string{"a 2001:db8::1>2001:db8:1::2 b"}},
		{"link-local at last", []Rail{rail("a", 0, "10.0.0.1/24", "fe80::1/64")}, []Rail{rail("b", 0, "2001:db8:1::2/64", "fe80::2/64")}, anywhere, []string{"a fe80::1>fe80::2 b"}},
		{"k to k", []Rail{rail("a0", 0, "10.0.0.1/16"), rail("a1", 0, "10.0.0.2/16"), rail("a10", 0, "10.0.0.3/16")},
			[]Rail{rail("b0", 0, "10.0.1.1/16"), rail("b1", 0, "10.0.1.2/16"), rail("b10", 0, "10.0.1.3/16")}, nowhere,
			[]string{"a0 10.0.0.1>10.0.1.1 b0", "a1 10.0.0.2>10.0.1.2 b1", "a10 10.0.0.3>10.0.1.3 b10"}},
		{"NUMA before k to k", []Rail{rail("a0", 0, "10.0.0.1/16"), rail("a1", 1, "10.0.0.2/16")}, []Rail{rail("b0", 1, "10.0.1.1/16"), rail("b1", 0, "10.0.1.2/16")}, nowhere,
			[]string{"a0 10.0.0.1>10.0.1.2 b1", "a1 10.0.0.2>10.0.1.1 b0"}},
		{"one for two", []Rail{rail("a", 0, "10.0.0.1/16")}, []Rail{rail("b0", 0, "10.0.1.1/16"), rail("b1", 0, "10.0.1.2/16")}, nowhere,
			[]string{"a 10.0.0.1>10.0.1.1 b0 shared", "a 10.0.0.1>10.0.1.2 b1 shared"}},
		{"four for two", []Rail{rail("a0", 0, "10.0.0.1/16"), rail("a1", 0, "10.0.0.2/16"), rail("a2", 1, "10.0.0.3/16"), rail("a3", 1, "10.0.0.4/16")},
			[]Rail{rail("b0", 0, "10.0.1.1/16"), rail("b1", 1, "10.0.1.2/16")}, nowhere,
			[]string{"a0 10.0.0.1>10.0.1.1 b0 shared", "a1 10.0.0.2>10.0.1.1 b0 shared", "a2 10.0.0.3>10.0.1.2 b1 shared", "a3 10.0.0.4>10.0.1.2 b1 shared"}},
		{"nobody is saved", []Rail{rail("a0", 0, "10.0.0.1/24"), rail("a1", 0, "10.5.0.1/24")}, []Rail{rail("b0", 0, "10.0.0.2/24"), rail("b1", 0, "10.0.0.3/24")},
			func(r Rail, _ nic.GIDInfo, to netip.Addr) bool {
				return r.Device == "a1" && to == netip.MustParseAddr("10.0.0.2")
			},
			[]string{"a0 10.0.0.1>10.0.0.3 b1", "a1 10.5.0.1>10.0.0.2 b0"}},
		{"no management network", []Rail{rail("a0", 0, "10.0.0.1/24"), rail("mgmt", 0, "192.0.2.1/24")}, []Rail{rail("b0", 0, "10.0.0.2/24")}, anywhere, []string{"a0 10.0.0.1>10.0.0.2 b0"}},
		{"no router", []Rail{rail("a", 0, "10.0.0.1/24")}, []Rail{rail("b", 0, "10.0.1.2/24")}, nil, nil},
	} {
		pairs, left := Pairs(x.local, told(x.peer...), x.reach)
		assert.Equal(t, x.want, joined(pairs), "%s: %v", x.what, left)
		for _, p := range pairs {
			assert.NotEmpty(t, p.Why, x.what)
		}
	}
	a, b := rail("a", 0, "10.0.0.1/24"), rail("b", 0, "10.0.0.2/24")
	for _, mtu := range [][3]int{{4096, 1024, 1024}, {1024, 4096, 1024}, {0, 2048, 2048}, {2048, 0, 2048}, {0, 0, 0}} {
		a.MTU, b.MTU = mtu[0], mtu[1]
		pairs, _ := Pairs([]Rail{a}, told(b), nowhere)
		require.Len(t, pairs, 1)
		assert.Equal(t, mtu[2], pairs[0].MTU)
	}
}

func TestInfiniBandPairs(t *testing.T) {
	here, _ := Local([]nic.DeviceInfo{infiniBand("ib0", 1), infiniBand("ib1", 2)}, Options{})
	there, _ := Local([]nic.DeviceInfo{infiniBand("ib0", 3), infiniBand("ib1", 4)}, Options{})
	there[1].GIDs = []nic.GIDInfo{{GID: [16]byte{0: 0xfe, 1: 0xc0, 7: 1, 15: 4}, Type: nic.GIDInfiniBand}} // another subnet
	pairs, left := Pairs(here, told(there...), nowhere)
	require.Len(t, pairs, 2)
	for _, p := range pairs {
		assert.Equal(t, uint16(3), p.Peer.LID)
		assert.Contains(t, p.Why, "fe80000000000000")
	}
	require.Len(t, left, 1)
	assert.Contains(t, left[0], "the peer's ib1:1: none of those here is in its InfiniBand subnet")
}

func TestWhyUnpaired(t *testing.T) {
	ib, _ := Local([]nic.DeviceInfo{infiniBand("ib0", 1)}, Options{})
	v4, v6 := rail("a", 0, "10.0.0.1/24"), rail("b", 0, "2001:db8::1/64")
	for _, x := range []struct {
		local []Rail
		peer  []PeerRail
		want  []string
	}{
		{[]Rail{v4}, nil, []string{"a:1: there are no rails to join it with"}},
		{nil, told(v4), []string{"the peer's a:1: there are no rails to join it with"}},
		{[]Rail{v4}, told(v6), []string{"a:1: it has 10.0.0.1, and the peer's have 2001:db8::1: no IP version in common", "the peer's b:1: it has 2001:db8::1"}},
		{[]Rail{v4}, told(ib...), []string{"a:1: it is Ethernet, and the peer's are not", "the peer's ib0:1: it is InfiniBand, and those here are not"}},
		{[]Rail{v4}, told(rail("c", 0, "10.0.1.1/24")), []string{"a:1: no route between 10.0.0.1 and any of the peer's: 10.0.1.1", "the peer's c:1: no route"}},
	} {
		pairs, left := Pairs(x.local, x.peer, nowhere)
		assert.Empty(t, pairs)
		require.Len(t, left, len(x.want))
		for i, s := range x.want {
			assert.Contains(t, left[i], s)
		}
	}
	_, left := Pairs([]Rail{v4, rail("mgmt", 0, "192.0.2.1/24")}, told(rail("c", 0, "10.0.0.2/24")), anywhere)
	require.Len(t, left, 1)
	assert.Contains(t, left[0], "only be through a router")
	var many []Rail
	for i := range MaxRails + 2 {
		many = append(many, rail(fmt.Sprintf("d%d", i), 0, fmt.Sprintf("10.0.0.%d/24", i)))
	}
	pairs, left := Pairs(many, told(many...), nowhere)
	assert.Len(t, pairs, MaxRails)
	require.Len(t, left, 2)
	assert.Contains(t, left[0], "2 rails from d64:1 on")
	assert.Contains(t, left[1], "2 rails of the peer from d64:1 on")
}

// drawn makes up to most rails with some GIDs in few subnets.
func drawn(rng *rand.Rand, prefix string, host, most int) (out []Rail) {
	for i := range rng.IntN(most + 1) {
		var addrs []string
		for net := range 3 {
			if rng.IntN(3) == 0 {
				addrs = append(addrs, fmt.Sprintf("10.0.%d.%d/24", net, host+i))
			}
		}
		if rng.IntN(3) == 0 {
			addrs = append(addrs, fmt.Sprintf("2001:db8:%d::%x/64", rng.IntN(2), host+i))
		}
		if rng.IntN(4) == 0 {
			addrs = append(addrs, fmt.Sprintf("fe80::%x/64", host+i))
		}
		r := rail(fmt.Sprintf("%s%d", prefix, i), rng.IntN(3)-1, addrs...)
		if rng.IntN(8) == 0 {
			r.LinkLayer, r.LID = nic.InfiniBand, uint16(i+1)
			r.GIDs = []nic.GIDInfo{{GID: [16]byte{0: 0xfe, 1: 0x80, 7: byte(rng.IntN(2)), 15: byte(i)}, Type: nic.GIDInfiniBand}}
		}
		out = append(out, r)
	}
	return out
}

// routes is a router that always answers the same.
func routes(salt uint64) Reach {
	return func(r Rail, _ nic.GIDInfo, to netip.Addr) bool {
		b := to.As16()
		return rand.New(rand.NewPCG(salt, uint64(b[15])|uint64(len(r.Device))<<8|uint64(r.Device[len(r.Device)-1])<<16)).IntN(3) == 0
	}
}

// most is how many can be joined one to one, by augmenting paths.
func most(t *table) (n int) {
	rowOf := make([]int, len(t.numaP))
	for j := range rowOf {
		rowOf[j] = -1
	}
	var try func(i int, seen []bool) bool
	try = func(i int, seen []bool) bool {
		for j := range rowOf {
			if t.ways[i][j].kind == never || seen[j] {
				continue
			}
			seen[j] = true
			if rowOf[j] < 0 || try(rowOf[j], seen) {
				rowOf[j] = i
				return true
			}
		}
		return false
	}
	for i := range t.ways {
		if try(i, make([]bool, len(rowOf))) {
			n++
		}
	}
	return n
}

func TestPairsProperties(t *testing.T) {
	rng := testseed.New(t)
	for range 400 {
		local, peer, salt := drawn(rng, "a", 1, 6), told(drawn(rng, "b", 101, 6)...), rng.Uint64()
		pairs, left := Pairs(local, peer, routes(salt))
		one := newTable(local, peer, routes(salt)).assign()
		require.Len(t, one, most(newTable(local, peer, routes(salt))), "as many as can be")
		require.GreaterOrEqual(t, len(pairs), len(one))

		usedHere, usedThere := map[string]int{}, map[string]int{}
		for _, p := range pairs {
			usedHere[p.Local.Name()]++
			usedThere[p.Peer.Name]++
			require.Equal(t, p.Local.LinkLayer, p.Peer.LinkLayer)
			require.Equal(t, p.LocalGID.Addr().Is4(), p.PeerGID.Addr().Is4())
			require.Contains(t, p.Local.GIDs, p.LocalGID)
			require.Contains(t, p.Peer.GIDs, p.PeerGID)
		}
		for _, p := range pairs {
			require.Equal(t, p.Shared, usedHere[p.Local.Name()] > 1 || usedThere[p.Peer.Name] > 1)
		}
		if len(one) == min(len(local), len(peer)) && len(local) == len(peer) {
			require.Len(t, pairs, len(one), "enough on both sides: none is used twice")
		}
		for i := range local {
			said := slices.IndexFunc(left, func(s string) bool { return strings.HasPrefix(s, local[i].Name()+":") })
			require.Equal(t, usedHere[local[i].Name()] == 0, said >= 0, "%s: %v", local[i].Name(), left)
		}
		for i := range peer {
			said := slices.IndexFunc(left, func(s string) bool { return strings.HasPrefix(s, "the peer's "+peer[i].Name+":") })
			require.Equal(t, usedThere[peer[i].Name] == 0, said >= 0, "%s: %v", peer[i].Name, left)
		}

		rng.Shuffle(len(local), func(i, j int) { local[i], local[j] = local[j], local[i] })
		rng.Shuffle(len(peer), func(i, j int) { peer[i], peer[j] = peer[j], peer[i] })
		pairs2, left2 := Pairs(local, peer, routes(salt))
		require.Equal(t, pairs, pairs2)
		require.ElementsMatch(t, left, left2)
	}
}

// TestPairsAreTheBest compares with all ways to join few rails.
func TestPairsAreTheBest(t *testing.T) {
	rng := testseed.New(t)
	for range 300 {
		local, peer := drawn(rng, "a", 1, 4), told(drawn(rng, "b", 101, 4)...)
		table := newTable(local, peer, routes(rng.Uint64()))
		got := int64(0)
		for _, c := range table.assign() {
			got += table.cost(c.here, c.there) - free
		}
		var best func(i int, used uint) int64
		best = func(i int, used uint) int64 {
			if i == len(local) {
				return 0
			}
			least := best(i+1, used)
			for j := range peer {
				if used&(1<<j) == 0 && table.ways[i][j].kind != never {
					least = min(least, table.cost(i, j)-free+best(i+1, used|1<<j))
				}
			}
			return least
		}
		require.Equal(t, best(0, 0), got)
	}
}

// TestSubnetsPair: rails in equal subnets find each other whatever they are called, and from both sides.
func TestSubnetsPair(t *testing.T) {
	rng := testseed.New(t)
	for range 100 {
		n := 1 + rng.IntN(10)
		var here, there []Rail
		for net, name := range rng.Perm(n) {
			here = append(here, rail(fmt.Sprintf("mlx5_%d", name), rng.IntN(2), fmt.Sprintf("10.%d.0.1/16", net), fmt.Sprintf("2001:db8:%x::1/64", net)))
		}
		for net, name := range rng.Perm(n) {
			there = append(there, rail(fmt.Sprintf("mlx5_%d", name), rng.IntN(2), fmt.Sprintf("10.%d.0.2/16", net), fmt.Sprintf("2001:db8:%x::2/64", net)))
		}
		for _, x := range [][2][]Rail{{here, there}, {there, here}} {
			pairs, left := Pairs(x[0], told(x[1]...), anywhere)
			require.Empty(t, left)
			require.Len(t, pairs, n)
			for _, p := range pairs {
				require.False(t, p.Shared)
				require.Equal(t, p.LocalGID.Addr().As4()[1], p.PeerGID.Addr().As4()[1])
			}
		}
	}
}

func TestWay(t *testing.T) {
	pairs, _ := Pairs([]Rail{rail("a", 0, "10.0.0.1/24")}, told(rail("b", 0, "10.0.0.2/24")), nowhere)
	require.Len(t, pairs, 1)
	assert.Equal(t, rdma.Way{Local: "a:1", Peer: "b:1", LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.2", MTU: 4096, Why: "10.0.0.1 and 10.0.0.2 are both in 10.0.0.0/24"}, pairs[0].Way())
	here, _ := Local([]nic.DeviceInfo{infiniBand("ib0", 1)}, Options{})
	there, _ := Local([]nic.DeviceInfo{infiniBand("ib1", 3)}, Options{})
	pairs, _ = Pairs(here, told(there...), nowhere)
	require.Len(t, pairs, 1)
	w := pairs[0].Way()
	assert.Equal(t, []string{"LID 1, fe80::1", "LID 3, fe80::3"}, []string{w.LocalAddr, w.PeerAddr})
}
