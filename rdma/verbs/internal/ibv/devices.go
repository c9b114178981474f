package ibv

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs"
)

// classes is where the kernel shows its devices; tests point it elsewhere.
const classes = "/sys/class"

// listDevices reads <root>/infiniband. A host without RDMA modules has no such folder, and no devices.
func listDevices(root string) ([]nic.DeviceInfo, error) {
	entries, err := os.ReadDir(filepath.Join(root, "infiniband"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, "verbs devices", err)
	}
	var all []nic.DeviceInfo
	for _, e := range entries {
		dir := filepath.Join(root, "infiniband", e.Name())
		d := nic.DeviceInfo{Name: e.Name(), NUMA: -1}
		if n, err := strconv.Atoi(line(dir, "device/numa_node")); err == nil && n >= 0 {
			d.NUMA = n
		}
		if bus, err := filepath.EvalSymlinks(filepath.Join(dir, "device")); err == nil {
			d.Bus = filepath.Base(bus)
		}
		ports, err := os.ReadDir(filepath.Join(dir, "ports"))
		if err != nil {
			continue // removed meanwhile
		}
		for _, p := range ports {
			if n, err := strconv.Atoi(p.Name()); err == nil {
				d.Ports = append(d.Ports, readPort(root, d.Name, n, map[int]nic.GIDType{}))
			}
		}
		slices.SortFunc(d.Ports, func(a, b nic.PortInfo) int { return a.Port - b.Port })
		all = append(all, d)
	}
	return all, nil
}

// readPort says what sysfs knows of a port, which is all but the active MTU. used are the GIDs to look at, nil: all.
func readPort(root, device string, port int, used map[int]nic.GIDType) nic.PortInfo {
	dir := filepath.Join(root, "infiniband", device, "ports", strconv.Itoa(port))
	p := nic.PortInfo{Port: port, LinkLayer: nic.InfiniBand}
	if line(dir, "link_layer") == "Ethernet" {
		p.LinkLayer = nic.Ethernet
	}
	_, p.State, _ = strings.Cut(line(dir, "state"), ": ") // "4: ACTIVE"
	p.Active = p.State == "ACTIVE"
	if lid, err := strconv.ParseUint(line(dir, "lid"), 0, 16); err == nil {
		p.LID = uint16(lid)
	}
	rate, _, _ := strings.Cut(line(dir, "rate"), " ") // "100 Gb/sec (4X EDR)"
	p.Gbps, _ = strconv.ParseFloat(rate, 64)
	p.PKeys = sysfs.PKeys(os.DirFS(dir))
	p.GIDs = readGIDs(root, dir, used)
	for _, g := range p.GIDs {
		if p.Netdev == "" {
			p.Netdev = g.Netdev
		}
	}
	return p
}

// readGIDs gives the entries in use: the others are zero, or have a prefix only, and no type.
func readGIDs(root, dir string, used map[int]nic.GIDType) []nic.GIDInfo {
	var all []nic.GIDInfo
	if used != nil {
		for i, kind := range used {
			if gid, ok := readGID(dir, i); ok {
				all = append(all, nic.GIDInfo{Index: i, GID: gid, Type: kind})
			}
		}
	} else {
		entries, _ := os.ReadDir(filepath.Join(dir, "gids"))
		for _, e := range entries {
			i, err := strconv.Atoi(e.Name())
			if err != nil {
				continue
			}
			gid, ok := readGID(dir, i)
			if !ok {
				continue
			}
			if kind := gidType(line(dir, "gid_attrs/types/"+e.Name()), line(dir, "link_layer")); kind != 0 {
				all = append(all, nic.GIDInfo{Index: i, GID: gid, Type: kind})
			}
		}
	}
	slices.SortFunc(all, func(a, b nic.GIDInfo) int { return a.Index - b.Index })
	for i := range all {
		// An interface of another network namespace has a name too, and means nothing here.
		netdev := line(dir, "gid_attrs/ndevs/"+strconv.Itoa(all[i].Index))
		if _, err := os.Stat(filepath.Join(root, "net", netdev)); netdev != "" && err == nil {
			all[i].Netdev = netdev
		}
	}
	return all
}

func readGID(dir string, index int) (gid [16]byte, ok bool) {
	raw, err := hex.DecodeString(strings.ReplaceAll(line(dir, "gids/"+strconv.Itoa(index)), ":", ""))
	if err != nil || len(raw) != 16 || allZero(raw[8:]) {
		return gid, false
	}
	return [16]byte(raw), true
}

// gidType reads the type of an entry. One word is for two types, which the link tells apart.
func gidType(word, link string) nic.GIDType {
	switch {
	case word == "RoCE v2":
		return nic.RoCEv2
	case word == "IB/RoCE v1" && link == "Ethernet":
		return nic.RoCEv1
	case word == "IB/RoCE v1":
		return nic.GIDInfiniBand
	}
	return 0
}

// uverbs finds the character device through which a device is used: "uverbs0", or "" where the kernel has none for it.
func uverbs(root, device string) string {
	entries, _ := os.ReadDir(filepath.Join(root, "infiniband_verbs"))
	for _, e := range entries {
		if line(filepath.Join(root, "infiniband_verbs", e.Name()), "ibdev") == device {
			return e.Name()
		}
	}
	return ""
}

// line is a file of one line; "" also where it cannot be read, as sysfs refuses attributes that do not apply.
func line(dir, name string) string {
	b, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
