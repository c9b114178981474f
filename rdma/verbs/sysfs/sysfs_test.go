package sysfs

import (
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs/sysfstest"
)

func TestDevices(t *testing.T) {
	tree := sysfstest.New()
	tree.Interface("eth2", 9000)
	tree.Interface("eth10", 1500)
	ib := nic.DeviceInfo{Name: "mlx5_3", NUMA: 1, Bus: "0000:af:00.0", Ports: []nic.PortInfo{
		{Port: 1, LinkLayer: nic.InfiniBand, Active: true, State: "ACTIVE", LID: 0x1a, Gbps: 400, PKeys: []uint16{0xffff, 0, 0x8001},
			GIDs: []nic.GIDInfo{{Index: 0, GID: [16]byte{0: 0xfe, 1: 0x80, 15: 7}, Type: nic.GIDInfiniBand}}},
		{Port: 2, LinkLayer: nic.InfiniBand, State: "DOWN", Gbps: 10}}}
	a := sysfstest.RoCE("mlx5_10", "eth10", 0, 100, "10.0.0.1", "2001:db8::1")
	b := sysfstest.RoCE("mlx5_2", "eth2", 1, 2.5, "10.0.1.1")
	for _, d := range []nic.DeviceInfo{a, ib, b} {
		tree.Device(d)
	}
	a.Ports[0].MTU = 1024 // what follows from the interface's
	got, err := Devices(tree)
	require.NoError(t, err)
	assert.Equal(t, []nic.DeviceInfo{b, ib, a}, got)
	assert.Equal(t, []PortState{{"mlx5_2", 1, true}, {"mlx5_3", 1, true}, {"mlx5_3", 2, false}, {"mlx5_10", 1, true}}, Ports(tree))
	assert.Empty(t, Ports(sysfstest.New()))
}

// rxe is a device without a place of its own, whose interface's card has one.
func TestSoftwareDevice(t *testing.T) {
	tree := sysfstest.New()
	tree.Interface("eth0", 1500)
	tree.File("sys/class/net/eth0/device/numa_node", "1")
	tree.File("sys/class/infiniband/rxe0/parent", "eth0")
	d := sysfstest.RoCE("rxe0", "eth0", -1, 2.5, "10.7.0.1")
	gids := d.Ports[0].GIDs
	d.Ports[0].GIDs = nil
	tree.Device(d)
	got, err := Devices(tree)
	require.NoError(t, err)
	d.NUMA, d.Ports[0].MTU = 1, 1024
	assert.Equal(t, []nic.DeviceInfo{d}, got, "without any GID the device names its interface")
	d.Ports[0].GIDs = gids
	tree.Device(d)
	got, err = Devices(tree)
	require.NoError(t, err)
	assert.Equal(t, []nic.DeviceInfo{d}, got)
}

func TestInterfaceByItsPort(t *testing.T) {
	tree := sysfstest.New()
	d := sysfstest.RoCE("mlx4_0", "ens1d1", 0, 40)
	d.Ports[0].GIDs = nil
	d.Ports = append(d.Ports, d.Ports[0])
	d.Ports[1].Port = 2
	tree.Device(d)
	for i, name := range []string{"ens1", "ens1d1"} {
		tree.Interface(name, 9000)
		tree.File("sys/class/net/"+name+"/dev_port", string(rune('0'+i)))
		tree.File("sys/class/infiniband/mlx4_0/device/net/"+name+"/x", "")
	}
	got, err := Devices(tree)
	require.NoError(t, err)
	assert.Equal(t, []string{"ens1", "ens1d1"}, []string{got[0].Ports[0].Netdev, got[0].Ports[1].Netdev})
}

func TestTableWithHoles(t *testing.T) {
	tree := sysfstest.New()
	tree.Interface("eth0", 1500)
	d := sysfstest.RoCE("mlx5_0", "eth0", 0, 100)
	d.Ports[0].GIDs = []nic.GIDInfo{sysfstest.GID(3, "10.0.0.1", "eth0"), sysfstest.GID(5, "10.0.0.2", "other")}
	tree.Device(d)
	dir := "sys/class/infiniband/mlx5_0/ports/1/"
	tree.File(dir+"gids/7", "fe80:0000:0000:0000:0000:0000:0000:0009") // its type is unknown: it went meanwhile
	tree.File(dir+"gids/x", "fe80:0000:0000:0000:0000:0000:0000:0009")
	tree.File(dir+"gids/08", "fe80:0000:0000:0000:0000:0000:0000:0009")
	got, err := Devices(tree)
	require.NoError(t, err)
	d.Ports[0].GIDs[1].Netdev = "" // not of this network namespace
	assert.Equal(t, d.Ports[0].GIDs, got[0].Ports[0].GIDs)
}

type refusing struct{ fs.FS }

func (refusing) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
}

func TestNoDevices(t *testing.T) {
	got, err := Devices(sysfstest.New())
	require.NoError(t, err)
	assert.Empty(t, got)
	_, err = Devices(refusing{})
	require.ErrorIs(t, err, fault.ErrPermissionDenied)
	tree := sysfstest.New()
	tree.File("sys/class/infiniband/abc/x", "no ports")
	tree.File("sys/class/infiniband/file", "")
	got, err = Devices(tree)
	require.NoError(t, err)
	assert.Empty(t, got)
}

// TestThisHost reads whatever is here.
func TestThisHost(t *testing.T) {
	devs, err := Devices(os.DirFS("/"))
	require.NoError(t, err)
	for _, d := range devs {
		t.Logf("%+v", d)
		assert.NotEmpty(t, d.Ports)
		for _, p := range d.Ports {
			assert.NotEmpty(t, p.State)
			assert.NotZero(t, p.LinkLayer)
		}
	}
}

func TestEthernetMTU(t *testing.T) {
	for mtu, want := range map[int]int{0: 0, 300: 0, 352: 256, 1119: 512, 1120: 1024, 1500: 1024, 2143: 1024, 2144: 2048, 4191: 2048, 4192: 4096, 9000: 4096, 65536: 4096} {
		assert.Equal(t, want, EthernetMTU(mtu), "%d", mtu)
	}
}

func TestCounters(t *testing.T) {
	tree := sysfstest.New()
	tree.Device(sysfstest.RoCE("mlx5_0", "eth0", 0, 100))
	assert.Empty(t, Counters(tree, "mlx5_0", 1))
	tree.Counter("mlx5_0", 1, "counters", "port_xmit_data", 1<<40)
	tree.Counter("mlx5_0", 1, "hw_counters", "out_of_sequence", 3)
	tree.Counter("mlx5_0", 1, "hw_counters", "lifespan", 10)
	tree.File("sys/class/infiniband/mlx5_0/ports/1/counters/bad", "N/A (no PMA)")
	tree.File("sys/class/infiniband/mlx5_0/hw_counters/of_the_device", "1")
	assert.Equal(t, []Counter{{"port_xmit_data", 1 << 40}, {"out_of_sequence", 3}}, Counters(tree, "mlx5_0", 1))
	tree.Device(sysfstest.RoCE("bnxt_re0", "eth1", 0, 100))
	tree.File("sys/class/infiniband/bnxt_re0/hw_counters/rx_ecn_marked", "18446744073709551615")
	assert.Equal(t, []Counter{{"rx_ecn_marked", 1<<64 - 1}}, Counters(tree, "bnxt_re0", 1), "some drivers count for the device")
}

func TestTraffic(t *testing.T) {
	tree := sysfstest.New()
	tree.Device(sysfstest.RoCE("mlx5_0", "eth0", 0, 100))
	tree.Device(sysfstest.RoCE("rxe0", "eth1", -1, 10))
	none := ReadTraffic(tree, "mlx5_0", 1)
	assert.Equal(t, Traffic{Events: map[Event]uint64{}}, none)
	for name, v := range map[string]uint64{"port_xmit_data": 1 << 63, "port_rcv_data": 10, "port_xmit_packets": 7, "port_rcv_packets": 5, "port_xmit_discards": 2} {
		tree.Counter("mlx5_0", 1, "counters", name, v)
	}
	for name, v := range map[string]uint64{"packet_seq_err": 3, "implied_nak_seq_err": 4, "np_cnp_sent": 9, "rx_write_requests": 1000, "out_of_sequence": 1<<64 - 1} {
		tree.Counter("mlx5_0", 1, "hw_counters", name, v)
	}
	got := ReadTraffic(tree, "mlx5_0", 1)
	assert.Equal(t, Traffic{SentBytes: 1<<64 - 1, ReceivedBytes: 40, SentPackets: 7, ReceivedPackets: 5, BytesKnown: true, PacketsKnown: true,
		Events: map[Event]uint64{SequenceNAK: 7, CNPSent: 9, OutOfSequence: 1<<64 - 1, Discarded: 2}}, got)
	assert.Equal(t, uint64(1<<64-1), got.Lost())
	for name, v := range map[string]uint64{"sent_pkts": 100, "rcvd_pkts": 90, "completer_retry_err": 2, "retry_exceeded_err": 1, "link_downed": 1, "out_of_seq_request": 3} {
		tree.Counter("rxe0", 1, "hw_counters", name, v)
	}
	got = ReadTraffic(tree, "rxe0", 1)
	assert.Equal(t, Traffic{SentPackets: 100, ReceivedPackets: 90, PacketsKnown: true,
		Events: map[Event]uint64{Retransmission: 2, RetriesExceeded: 1, LinkDown: 1, OutOfSequence: 3}}, got)
	assert.Equal(t, uint64(6), got.Lost())
	seen := map[string]bool{}
	for _, m := range Events {
		for _, c := range m.Counters {
			assert.False(t, seen[c], "%s is counted twice", c)
			seen[c] = true
		}
		assert.NotEmpty(t, m.Text)
	}
}

// TestDocsTellEvents holds the table in docs/metrics.md to Events.
func TestDocsTellEvents(t *testing.T) {
	page, err := os.ReadFile("../../../docs/metrics.md")
	require.NoError(t, err)
	at := 0
	for _, m := range Events {
		loss := ""
		if m.Loss {
			loss = "yes"
		}
		row := fmt.Sprintf("| `%s` | %s | %s | `%s` |\n", m.Event, m.Text, loss, strings.Join(m.Counters, "`, `"))
		i := strings.Index(string(page), row)
		require.Greater(t, i, at, "%s", row)
		at = i
	}
}

func TestECN(t *testing.T) {
	tree := sysfstest.New()
	tree.Interface("eth0", 1500)
	_, known := ReadECN(tree, "eth0")
	assert.False(t, known)
	for i, on := range []string{"0", "1", "0", "1"} {
		tree.File("sys/class/net/eth0/ecn/roce_np/enable/"+string(rune('0'+i)), on)
		tree.File("sys/class/net/eth0/ecn/roce_rp/enable/"+string(rune('0'+i)), "0")
	}
	ecn, known := ReadECN(tree, "eth0")
	assert.True(t, known)
	assert.Equal(t, ECN{Notify: []int{1, 3}}, ecn)
}

func TestWhyNoGIDs(t *testing.T) {
	d := sysfstest.RoCE("mlx5_0", "eth0", 0, 100, "10.0.0.1")
	for _, x := range []struct {
		mode, netdev string // of the kernel; of the port, as it is seen
		empty        bool
		want         string
	}{
		{"", "eth0", true, "interface eth0 has no address, or is down"},
		{"Y", "", true, "another network namespace has its interface, while the device is shared"},
		{"N", "", true, "rdma system: netns exclusive"},
		{"", "", true, "in another network namespace, or there is none"},
		{"Y", "", false, "none of its 4 GIDs is on an interface of this network namespace"},
		{"Y", "eth0", false, ""},
	} {
		tree := sysfstest.New()
		if x.mode != "" {
			tree.File("sys/module/ib_core/parameters/netns_mode", x.mode)
		}
		if x.netdev != "" {
			tree.Interface(x.netdev, 1500)
			tree.File("sys/class/infiniband/mlx5_0/parent", x.netdev)
		}
		in := d
		if x.empty {
			in.Ports = []nic.PortInfo{d.Ports[0]}
			in.Ports[0].GIDs = nil
		}
		tree.Device(in)
		got, err := Devices(tree)
		require.NoError(t, err)
		why := WhyNoGIDs(tree, "mlx5_0", got[0].Ports[0])
		assert.Equal(t, x.want == "", why == "", why)
		assert.Contains(t, why, x.want)
	}
	assert.Empty(t, WhyNoGIDs(sysfstest.New(), "x", nic.PortInfo{LinkLayer: nic.InfiniBand, GIDs: make([]nic.GIDInfo, 1)}))
	assert.NotEmpty(t, WhyNoGIDs(sysfstest.New(), "x", nic.PortInfo{LinkLayer: nic.InfiniBand}))
}

func FuzzTexts(f *testing.F) {
	for _, s := range []string{"4: ACTIVE", "100 Gb/sec (4X EDR)", "NaN Gb/sec", "0xffff", "-1", "fe80:0000:0000:0000:5054:00ff:fe00:0001", "RoCE v2", "DRIVER=x\nPCI_SLOT_NAME=0000:01:00.0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if r := parseRate(s); !(r >= 0 && r <= 1e6) {
			t.Fatalf("%q: rate %v", s, r)
		}
		if n, known := parseNode(s); n < 0 || !known && n > 1<<16 {
			t.Fatalf("%q: node %d", s, n)
		}
		if gid, used := parseGID(s); used != (gid != [16]byte{}) {
			t.Fatalf("%q: GID %x, used %v", s, gid, used)
		}
		if p := slot(s); strings.ContainsAny(p, "\n") {
			t.Fatalf("%q: slot %q", s, p)
		}
		_, _, _, _ = parseState(s), parseLID(s), parseLayer(s), parseType(s, nic.Ethernet)
	})
}

// FuzzTree puts arbitrary text into every file.
func FuzzTree(f *testing.F) {
	f.Add("eth0", "RoCE v2", "0000:0000:0000:0000:0000:ffff:0a00:0001", "Ethernet", "7")
	f.Add("../../etc", "IB/RoCE v1", "x", "InfiniBand", "99999999999")
	f.Fuzz(func(t *testing.T, netdev, kind, gid, layer, name string) {
		tree := fstest.MapFS{}
		dir := "sys/class/infiniband/d/ports/1/"
		for file, s := range map[string]string{"gids/" + name: gid, "gids/0": gid, "gid_attrs/types/0": kind, "gid_attrs/types/" + name: kind, "gid_attrs/ndevs/0": netdev,
			"state": layer, "rate": gid, "lid": name, "pkeys/" + name: name, "link_layer": layer, "hw_counters/" + name: name, "../../parent": netdev} {
			if p := dir + file; fs.ValidPath(p) {
				tree[p] = &fstest.MapFile{Data: []byte(s)}
			}
		}
		tree["sys/class/net/eth0/mtu"] = &fstest.MapFile{Data: []byte(name)}
		tree["sys/class/infiniband/d/parent"] = &fstest.MapFile{Data: []byte(netdev)}
		devs, err := Devices(tree)
		if err != nil {
			return
		}
		for _, d := range devs {
			for _, p := range d.Ports {
				for _, g := range p.GIDs {
					if g.GID == [16]byte{} || g.Type == 0 || g.Netdev != "" && g.Netdev != "eth0" {
						t.Fatalf("%+v", g)
					}
				}
				if p.Netdev != "" && p.Netdev != "eth0" || len(p.PKeys) > maxIndex {
					t.Fatalf("%+v", p)
				}
				_ = WhyNoGIDs(tree, d.Name, p)
			}
			Counters(tree, d.Name, 1)
		}
	})
}
