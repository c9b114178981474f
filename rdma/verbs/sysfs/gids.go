package sysfs

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// gids reads the entries in use of a port's table, in the order of their indices.
func gids(root fs.FS, dir string, layer nic.LinkLayer) (out []nic.GIDInfo) {
	for _, i := range indices(root, path.Join(dir, "gids")) {
		name := strconv.Itoa(i)
		gid, used := parseGID(text(root, path.Join(dir, "gids", name)))
		if !used {
			continue
		}
		g := nic.GIDInfo{Index: i, GID: gid, Type: parseType(text(root, path.Join(dir, "gid_attrs/types", name)), layer)}
		if g.Type == 0 {
			continue // it went while it was read, or is of a kind that nobody here knows
		}
		if dev := text(root, path.Join(dir, "gid_attrs/ndevs", name)); layer == nic.Ethernet && dev != "" && interfaceHere(root, dev) {
			g.Netdev = dev
		}
		out = append(out, g)
	}
	return out
}

// PKeys reads the table of partition keys in a port's own directory, which is the root of port; nil where there is none.
func PKeys(port fs.FS) []uint16 { return pkeys(port, ".") }

// pkeys reads the table of partition keys up to its last entry in use; nil where there is none.
func pkeys(root fs.FS, dir string) (out []uint16) {
	for _, i := range indices(root, path.Join(dir, "pkeys")) {
		key := parseLID(text(root, path.Join(dir, "pkeys", strconv.Itoa(i)))) // the same form: 0xffff
		if key == 0 {
			continue
		}
		for len(out) < i {
			out = append(out, 0)
		}
		out = append(out, key)
	}
	return out
}

// maxIndex bounds the tables: GIDs are indexed by a byte on the wire to the driver, partition keys by 16 bits.
const maxIndex = 1 << 16

// indices are the numbers that name the files of a directory, in order.
func indices(root fs.FS, dir string) (out []int) {
	entries, err := fs.ReadDir(root, dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && n < maxIndex && strconv.Itoa(int(n)) == e.Name() {
			out = append(out, int(n))
		}
	}
	slices.Sort(out)
	return out
}

// WhyNoGIDs says in words why nothing can be reached through a port whose GID table is empty or holds none of this network
// namespace; "" where it holds some.
func WhyNoGIDs(root fs.FS, dev string, p nic.PortInfo) string {
	if p.LinkLayer != nic.Ethernet {
		if len(p.GIDs) == 0 {
			return "its GID table is empty: the port has not been up yet, or nothing of it may be read here"
		}
		return ""
	}
	for _, g := range p.GIDs {
		if g.Netdev != "" {
			return ""
		}
	}
	what := "its GID table is empty"
	if len(p.GIDs) > 0 {
		what = fmt.Sprintf("none of its %d GIDs is on an interface of this network namespace", len(p.GIDs))
	}
	if p.Netdev != "" {
		return what + ": interface " + p.Netdev + " has no address, or is down"
	}
	switch text(root, "sys/module/ib_core/parameters/netns_mode") {
	case "Y", "1":
		return what + ": another network namespace has its interface, while the device is shared among all (rdma system: netns shared). Run in that namespace (hostNetwork, --network host), or move the interface, or one above it, into this one"
	case "N", "0":
		return what + ": its interface is in another network namespace than the device (rdma system: netns exclusive). Move it here too (ip link set dev IFACE netns ...)"
	}
	return what + ": its interface is in another network namespace, or there is none (rdma link, rdma system)"
}
