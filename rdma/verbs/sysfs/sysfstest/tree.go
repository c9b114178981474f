package sysfstest

import (
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"testing/fstest"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Tree is a file tree of "/".
type Tree struct{ fstest.MapFS }

// New is a machine without RDMA.
func New() Tree { return Tree{fstest.MapFS{}} }

// File writes a file with a line.
func (t Tree) File(name, line string) {
	t.MapFS[name] = &fstest.MapFile{Data: []byte(line + "\n"), Mode: 0o444}
}

// Interface adds a network interface.
func (t Tree) Interface(name string, mtu int) {
	t.File("sys/class/net/"+name+"/mtu", strconv.Itoa(mtu))
}

// Table is how many entries the tables of a port have; those that are not described are empty.
const Table = 8

// Device adds a device. Its ports' interfaces are added with Interface, before or after.
func (t Tree) Device(d nic.DeviceInfo) {
	dir := path.Join("sys/class/infiniband", d.Name)
	if d.Bus != "" {
		t.File(dir+"/device/uevent", "DRIVER=mlx5_core\nPCI_SLOT_NAME="+d.Bus)
		t.File(dir+"/device/numa_node", strconv.Itoa(d.NUMA))
	}
	for _, p := range d.Ports {
		t.port(d.Name, p)
	}
}

var states = map[string]int{"NOP": 0, "DOWN": 1, "INIT": 2, "ARMED": 3, "ACTIVE": 4, "ACTIVE_DEFER": 5}

// port writes what the kernel shows of one. An empty entry's GID is zero, and its type cannot be read.
func (t Tree) port(dev string, p nic.PortInfo) {
	dir := path.Join("sys/class/infiniband", dev, "ports", strconv.Itoa(p.Port))
	t.File(dir+"/state", fmt.Sprintf("%d: %s", states[p.State], p.State))
	t.File(dir+"/link_layer", p.LinkLayer.String())
	t.File(dir+"/rate", fmt.Sprintf("%g Gb/sec (4X EDR)", p.Gbps))
	t.File(dir+"/lid", fmt.Sprintf("%#x", p.LID))
	for i := range Table {
		t.File(fmt.Sprintf("%s/gids/%d", dir, i), gidText([16]byte{}))
		key := uint16(0)
		if i < len(p.PKeys) {
			key = p.PKeys[i]
		}
		t.File(fmt.Sprintf("%s/pkeys/%d", dir, i), fmt.Sprintf("0x%04x", key))
	}
	for _, g := range p.GIDs {
		kind := "IB/RoCE v1"
		if g.Type == nic.RoCEv2 {
			kind = "RoCE v2"
		}
		t.File(fmt.Sprintf("%s/gids/%d", dir, g.Index), gidText(g.GID))
		t.File(fmt.Sprintf("%s/gid_attrs/types/%d", dir, g.Index), kind)
		if g.Netdev != "" {
			t.File(fmt.Sprintf("%s/gid_attrs/ndevs/%d", dir, g.Index), g.Netdev)
		}
	}
}

// Counter sets a counter of a port: group is "counters" or "hw_counters".
func (t Tree) Counter(dev string, port int, group, name string, v uint64) {
	t.File(fmt.Sprintf("sys/class/infiniband/%s/ports/%d/%s/%s", dev, port, group, name), strconv.FormatUint(v, 10))
}

func gidText(g [16]byte) (s string) {
	for i := 0; i < 16; i += 2 {
		if i > 0 {
			s += ":"
		}
		s += fmt.Sprintf("%02x%02x", g[i], g[i+1])
	}
	return s
}

// GID is an entry of RoCE v2 with the given address.
func GID(index int, addr, netdev string) nic.GIDInfo {
	return nic.GIDInfo{Index: index, GID: netip.MustParseAddr(addr).As16(), Type: nic.RoCEv2, Netdev: netdev}
}

// RoCE is a device with one active port on an interface, with GIDs as the kernel makes them: each address as RoCE v1 and then as
// v2, the interface's link-local one first.
func RoCE(name, netdev string, numa int, gbps float64, addrs ...string) nic.DeviceInfo {
	var bus string
	if numa >= 0 {
		bus = fmt.Sprintf("0000:%02x:00.0", 16+len(name)+numa)
	}
	p := nic.PortInfo{Port: 1, LinkLayer: nic.Ethernet, Active: true, State: "ACTIVE", MTU: 4096, Gbps: gbps, Netdev: netdev, PKeys: []uint16{0xffff}}
	for _, a := range append([]string{"fe80::5054:ff:fe00:1"}, addrs...) {
		g := GID(len(p.GIDs), a, netdev)
		g.Type = nic.RoCEv1
		p.GIDs = append(p.GIDs, g)
		p.GIDs = append(p.GIDs, GID(len(p.GIDs), a, netdev))
	}
	return nic.DeviceInfo{Name: name, NUMA: numa, Bus: bus, Ports: []nic.PortInfo{p}}
}
