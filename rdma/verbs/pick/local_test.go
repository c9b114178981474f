package pick

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs/sysfstest"
)

func infiniBand(name string, lid uint16) nic.DeviceInfo {
	return nic.DeviceInfo{Name: name, NUMA: 0, Ports: []nic.PortInfo{{Port: 1, LinkLayer: nic.InfiniBand, Active: true, State: "ACTIVE", MTU: 4096, LID: lid, Gbps: 400,
		GIDs: []nic.GIDInfo{{GID: [16]byte{0: 0xfe, 1: 0x80, 15: byte(lid)}, Type: nic.GIDInfiniBand}}, PKeys: []uint16{0x7fff, 0xffff, 0x8002}}}}
}

func names(rails []Rail) (out []string) {
	for i := range rails {
		out = append(out, rails[i].Name())
	}
	return out
}

func networks(of map[string][]string) map[string][]netip.Prefix {
	out := map[string][]netip.Prefix{}
	for name, list := range of {
		out[name] = nil
		for _, p := range list {
			out[name] = append(out[name], netip.MustParsePrefix(p))
		}
	}
	return out
}

func TestLocal(t *testing.T) {
	down := sysfstest.RoCE("mlx5_1", "eth1", 0, 100, "10.0.1.1")
	down.Ports[0].Active, down.Ports[0].State = false, "DOWN"
	two := sysfstest.RoCE("mlx5_10", "eth10", 0, 100, "10.0.10.1")
	two.Ports = append(two.Ports, two.Ports[0])
	two.Ports[1].Port = 2
	v1 := sysfstest.RoCE("old0", "eth5", 0, 40)
	v1.Ports[0].GIDs = v1.Ports[0].GIDs[:1]
	empty := sysfstest.RoCE("empty0", "eth6", 0, 40)
	empty.Ports[0].GIDs = nil
	away := sysfstest.RoCE("away0", "", 0, 40)
	away.Ports[0].GIDs = nil
	devs := []nic.DeviceInfo{two, down, sysfstest.RoCE("mlx5_2", "eth2", 1, 100, "10.0.2.1", "2001:db8::2"), v1, empty, away, infiniBand("ib0", 7), infiniBand("ib1", 0), {Name: "bare0"},
		{Name: "odd0", Ports: []nic.PortInfo{{Port: 1, Active: true, State: "ACTIVE"}}}}
	for _, x := range []struct {
		what string
		o    Options
		want []string
		why  map[string]string // of some of the others
	}{
		{"all", Options{}, []string{"ib0:1", "mlx5_2:1", "mlx5_10:1", "mlx5_10:2"}, map[string]string{"mlx5_1": "DOWN, not ACTIVE", "old0": "RoCE v1 only", "empty0": "interface eth6 has no address",
			"away0": "not in this network namespace", "ib1": "no subnet manager", "bare0": "no ports", "odd0": "link layer is unknown"}},
		{"allow", Options{Allow: []string{"mlx5_2", "mlx5_10:2"}}, []string{"mlx5_2:1", "mlx5_10:2"}, map[string]string{"ib0": "not among the allowed: mlx5_2, mlx5_10:2"}},
		{"deny", Options{Allow: []string{"mlx5_*"}, Deny: []string{"*:1"}}, []string{"mlx5_10:2"}, map[string]string{"mlx5_2": "denied by *:1"}},
		{"bad pattern", Options{Deny: []string{"[x"}}, nil, map[string]string{"mlx5_2": "cannot be read"}},
		{"GID", Options{GID: netip.MustParseAddr("2001:db8::2")}, []string{"mlx5_2:1"}, map[string]string{"ib0": "does not have the GID 2001:db8::2"}},
		{"mapped GID", Options{GID: netip.MustParseAddr("::ffff:10.0.2.1")}, []string{"mlx5_2:1"}, nil},
		{"partition", Options{PKey: 2}, []string{"ib0:1"}, map[string]string{"mlx5_2": "not in partition 0x0002; its keys are 0xffff"}},
		{"networks", Options{Networks: networks(map[string][]string{"eth2": {"10.0.2.1/24"}, "eth10": {"10.9.9.9/8"}})}, []string{"ib0:1", "mlx5_2:1", "mlx5_10:1", "mlx5_10:2"}, nil},
		{"no interface", Options{Networks: networks(map[string][]string{"eth2": {"10.0.2.1/24"}})}, []string{"ib0:1", "mlx5_2:1"}, map[string]string{"mlx5_10": "no GID of it has an address of this network namespace"}},
	} {
		rails, left := Local(devs, x.o)
		assert.Equal(t, x.want, names(rails), x.what)
		ports := 1 // bare0
		for _, d := range devs {
			ports += len(d.Ports)
		}
		assert.Len(t, left, ports-len(rails), "%s: %v", x.what, left)
		said := map[string]string{}
		for _, r := range left {
			said[r.Device] = r.String()
		}
		for dev, why := range x.why {
			assert.Contains(t, said[dev], why, x.what)
		}
	}
	rails, _ := Local(devs, Options{})
	assert.Equal(t, uint16(1), rails[0].PKeyIndex, "a full member of the default partition before a limited one")
	err := (&Options{Allow: []string{"mlx5_0", "[x"}}).Check()
	require.ErrorIs(t, err, fault.ErrInvalidArgument)
	assert.Contains(t, err.Error(), "allow")
	require.Error(t, (&Options{Deny: []string{""}}).Check())
	require.NoError(t, (&Options{Allow: []string{"mlx5_[01]:?"}}).Check())
}

func TestPartition(t *testing.T) {
	for _, x := range []struct {
		table []uint16
		want  uint16
		index int // -1: not found
	}{
		{nil, 0, 0}, {nil, 0xffff, -1}, {[]uint16{0, 0x8001}, 0, 1}, {[]uint16{0x8001, 0x7fff}, 0, 1}, {[]uint16{0x7fff, 0xffff}, 0, 1},
		{[]uint16{0xffff, 0x0002}, 0x8002, 1}, {[]uint16{0xffff}, 2, -1}, {[]uint16{0, 0}, 0, 0},
	} {
		i, found := partition(x.table, x.want)
		assert.Equal(t, x.index >= 0, found, "%+v", x)
		assert.Equal(t, uint16(max(x.index, 0)), i, "%+v", x)
	}
}

func TestOrderOfGIDs(t *testing.T) {
	d := sysfstest.RoCE("mlx5_0", "eth0", 0, 100, "169.254.1.1", "fd00::1", "2001:db8::1", "10.0.0.2", "10.0.0.1")
	rails, _ := Local([]nic.DeviceInfo{d}, Options{})
	require.Len(t, rails, 1)
	var got []string
	for _, g := range rails[0].GIDs {
		assert.Equal(t, nic.RoCEv2, g.Type)
		got = append(got, g.Addr().String())
	}
	assert.Equal(t, []string{"10.0.0.2", "10.0.0.1", "2001:db8::1", "fd00::1", "fe80::5054:ff:fe00:1", "169.254.1.1"}, got)
	assert.Nil(t, rails[0].Networks)

	rails, _ = Local([]nic.DeviceInfo{d}, Options{Networks: networks(map[string][]string{"eth0": {"10.0.0.1/24", "2001:db8::1/64", "10.0.0.9/24"}, "eth1": {"10.0.0.2/24"}})})
	require.Len(t, rails, 1)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")}, rails[0].Networks)
	assert.Len(t, rails[0].GIDs, 3, "and the link-local one")
}
