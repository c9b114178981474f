package sysfs

import (
	"cmp"
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const (
	class  = "sys/class/infiniband"
	netdir = "sys/class/net"
)

// Devices lists the RDMA devices in the order of their names, mlx5_2 before mlx5_10. A host without any gives an empty list;
// PermissionDenied and Internal say that the list cannot be read.
func Devices(root fs.FS) ([]nic.DeviceInfo, error) {
	entries, err := fs.ReadDir(root, class)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fault.Wrap(fault.PermissionDenied, "rdma_devices", err)
	case err != nil:
		return nil, fault.Wrap(fault.Internal, "rdma_devices", err)
	}
	out := make([]nic.DeviceInfo, 0, len(entries))
	for _, e := range entries {
		if d, there := device(root, e.Name()); there {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b nic.DeviceInfo) int { return nic.CompareNames(a.Name, b.Name) })
	return out, nil
}

// PortState is what Ports tells.
type PortState struct {
	Device string
	Port   int
	Active bool
}

// Ports lists all devices' ports without their tables, for who asks often. What cannot be read is left out.
func Ports(root fs.FS) (out []PortState) {
	devices, _ := fs.ReadDir(root, class)
	for _, d := range devices {
		for _, n := range indices(root, path.Join(class, d.Name(), "ports")) {
			state := parseState(text(root, path.Join(class, d.Name(), "ports", strconv.Itoa(n), "state")))
			if n > 0 && n <= maxPort && state != "" {
				out = append(out, PortState{d.Name(), n, state == "ACTIVE"})
			}
		}
	}
	slices.SortFunc(out, func(a, b PortState) int { return cmp.Or(nic.CompareNames(a.Device, b.Device), a.Port-b.Port) })
	return out
}

// maxPort: ports are numbered by a byte.
const maxPort = 255

// device reads one; false where it has gone or is no RDMA device.
func device(root fs.FS, name string) (nic.DeviceInfo, bool) {
	dir := path.Join(class, name)
	if _, err := fs.Stat(root, path.Join(dir, "ports")); err != nil {
		return nic.DeviceInfo{}, false
	}
	d := nic.DeviceInfo{Name: name, NUMA: -1, Bus: slot(text(root, path.Join(dir, "device/uevent")))}
	for _, n := range indices(root, path.Join(dir, "ports")) {
		if n > 0 && n <= maxPort {
			d.Ports = append(d.Ports, port(root, name, n))
		}
	}
	node, known := parseNode(text(root, path.Join(dir, "device/numa_node")))
	for _, p := range d.Ports { // a software device has no place of its own; its interface's card has
		if !known && p.Netdev != "" {
			node, known = parseNode(text(root, path.Join(netdir, p.Netdev, "device/numa_node")))
		}
	}
	if known {
		d.NUMA = node
	}
	return d, true
}

func port(root fs.FS, dev string, n int) nic.PortInfo {
	dir := path.Join(class, dev, "ports", strconv.Itoa(n))
	p := nic.PortInfo{Port: n, LinkLayer: parseLayer(text(root, path.Join(dir, "link_layer"))), State: parseState(text(root, path.Join(dir, "state"))),
		Gbps: parseRate(text(root, path.Join(dir, "rate"))), LID: parseLID(text(root, path.Join(dir, "lid"))), PKeys: pkeys(root, dir)}
	p.Active = p.State == "ACTIVE"
	p.GIDs = gids(root, dir, p.LinkLayer)
	if p.LinkLayer == nic.Ethernet {
		p.Netdev = netdev(root, dev, p)
		p.MTU = EthernetMTU(int(number(root, path.Join(netdir, p.Netdev, "mtu"))))
	}
	return p
}

// netdev is the port's interface: the one that its GIDs are on, else the one that the device says; "" where it is not here.
func netdev(root fs.FS, dev string, p nic.PortInfo) string {
	for _, g := range p.GIDs {
		if g.Netdev != "" {
			return g.Netdev
		}
	}
	if name := text(root, path.Join(class, dev, "parent")); name != "" && interfaceHere(root, name) { // rxe, siw
		return name
	}
	entries, _ := fs.ReadDir(root, path.Join(class, dev, "device/net"))
	for _, e := range entries {
		at := number(root, path.Join(netdir, e.Name(), "dev_port"))
		if (len(entries) == 1 || int(at) == p.Port-1) && interfaceHere(root, e.Name()) {
			return e.Name()
		}
	}
	return ""
}

func interfaceHere(root fs.FS, name string) bool {
	if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return false // no interface has such a name
	}
	_, err := fs.Stat(root, path.Join(netdir, name))
	return err == nil
}

// text reads a small file; "" where it cannot be read.
func text(root fs.FS, name string) string {
	if !fs.ValidPath(name) {
		return ""
	}
	raw, err := fs.ReadFile(root, name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func number(root fs.FS, name string) uint64 {
	n, err := strconv.ParseUint(text(root, name), 10, 63)
	if err != nil {
		return 0
	}
	return n
}
