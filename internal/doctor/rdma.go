package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs"
)

// view is what several checks say of the same devices.
type view struct {
	devices []nic.DeviceInfo
	err     error // of listing them
	rails   []pick.Rail
	left    []pick.Refusal
	opened  map[string]opened // those of rails, where Host.RDMA can open devices
}

// opened is what a device says of itself.
type opened struct {
	attr   nic.Attr
	ports  map[int]nic.PortInfo
	dmabuf *bool // nil: it could not be found out
	err    error // of opening
}

// devices looks at the RDMA devices once. Devices that nothing is to be done with are not opened.
func (s *Subject) devices() *view {
	if s.view != nil {
		return s.view
	}
	v := &view{opened: map[string]opened{}}
	s.view = v
	if v.devices, v.err = sysfs.Devices(s.Host.FS); v.err != nil || len(v.devices) == 0 {
		return v
	}
	o := s.Rails
	if o.Networks == nil {
		// Where addresses cannot be listed every GID counts, as with the daemon.
		if networks, err := s.Host.Networks(); err == nil {
			o.Networks = networks
		}
	}
	v.rails, v.left = pick.Local(v.devices, o)
	for _, r := range v.rails {
		if _, done := v.opened[r.Device]; !done && s.Host.RDMA != nil {
			v.opened[r.Device] = open(s.Host.RDMA, r.Device, v.rails)
		}
	}
	return v
}

func open(h nic.Host, name string, rails []pick.Rail) (o opened) {
	d, err := h.Open(name)
	if err != nil {
		o.err = err
		return o
	}
	defer func() { _ = d.Close() }()
	o.attr, o.ports = d.Attr(), map[int]nic.PortInfo{}
	for _, r := range rails {
		if p, err := d.Port(r.Port); r.Device == name && err == nil {
			o.ports[r.Port] = p
		}
	}
	if p, can := d.(nic.DMABufProber); can {
		o.dmabuf = takesDMABufs(p.ProbeDMABuf())
	}
	return o
}

// takesDMABufs judges by the error of registering one that there is not.
func takesDMABufs(err error) *bool {
	yes := errors.Is(err, unix.EBADF)
	if yes || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, fault.ErrNotSupported) {
		return &yes
	}
	return nil
}

const installVerbs = "install libibverbs and the cards' parts of it (apt install libibverbs1 ibverbs-providers; dnf install libibverbs), in the container too"

func (s *Subject) verbs() Check {
	v, lib := s.devices(), s.Host.library("libibverbs")
	found := lib
	if found == "" {
		found = "no libibverbs"
	}
	switch {
	case v.err != nil:
		return warn("mount /sys, and let this user read /sys/class/infiniband", "RDMA devices cannot be listed: %v", v.err)
	case len(v.devices) == 0:
		return ok("no RDMA device, %s", found)
	case lib == "":
		return warn(installVerbs, "RDMA devices %s and no libibverbs: they are not used", names(v.devices))
	}
	for _, d := range v.devices {
		if o := v.opened[d.Name]; o.err != nil {
			return warn("see the check rdma-access; else install the card's part of libibverbs (apt install ibverbs-providers)", "%s cannot be opened: %v", d.Name, o.err)
		}
	}
	if len(v.rails) == 0 {
		var why []string
		for _, r := range v.left {
			why = append(why, r.String())
		}
		return warn("look at the checks port-..., and at which devices the configuration allows", "no port of %s can be used: %s", names(v.devices), strings.Join(why, "; "))
	}
	var used []string
	for i := range v.rails {
		used = append(used, v.rails[i].Name())
	}
	return ok("%d of %d ports can be used: %s; %s", len(v.rails), len(v.rails)+len(v.left), strings.Join(used, ", "), found)
}

func names(devices []nic.DeviceInfo) string {
	var out []string
	for _, d := range devices {
		out = append(out, d.Name)
	}
	return strings.Join(out, ", ")
}

// rdmaAccess looks at the device files that libibverbs opens.
func (s *Subject) rdmaAccess() Check {
	v := s.devices()
	if len(v.devices) == 0 {
		return ok("no RDMA device")
	}
	files := s.Host.uverbs()
	if len(files) == 0 {
		return warn("load the module: modprobe ib_uverbs, and on a host without it install linux-modules-extra or the like", "there is no /sys/class/infiniband_verbs: the kernel's part of libibverbs is not loaded")
	}
	var good, bad []string
	for _, d := range v.devices {
		file := files[d.Name]
		if file == "" {
			bad = append(bad, d.Name+" has no device file")
			continue
		}
		switch err := s.Host.Access(file); {
		case errors.Is(err, unix.ENOENT):
			bad = append(bad, fmt.Sprintf("%s of %s is not here", file, d.Name))
		case err != nil:
			bad = append(bad, fmt.Sprintf("%s of %s: %v", file, d.Name, err))
		default:
			good = append(good, fmt.Sprintf("%s of %s", file, d.Name))
		}
	}
	if len(bad) > 0 {
		return warn("let the daemon's user read and write /dev/infiniband/uverbs* (udev rule of rdma-core, group rdma); give a container the devices (--device /dev/infiniband, a device plug-in)",
			"user %d cannot use %s", s.Host.UID, strings.Join(bad, "; "))
	}
	return ok("user %d may use %s", s.Host.UID, strings.Join(good, ", "))
}

// uverbs are the device files by the devices' names.
func (h *Host) uverbs() map[string]string {
	out := map[string]string{}
	for _, name := range h.entries("/sys/class/infiniband_verbs") {
		if dev := h.text(path.Join("/sys/class/infiniband_verbs", name, "ibdev")); dev != "" {
			out[dev] = "/dev/infiniband/" + name
		}
	}
	return out
}

// rdmaMemory tells what of the devices' abilities matters for memory: how that of a GPU could come to them, and what makes large
// writes and fences cheap.
func (s *Subject) rdmaMemory() Check {
	v := s.devices()
	if len(v.devices) == 0 {
		return ok("no RDMA device")
	}
	peermem := "no nvidia-peermem"
	for _, m := range []string{"nvidia_peermem", "nv_peer_mem"} {
		if s.Host.exists("/sys/module/" + m) {
			peermem = m + " is loaded"
		}
	}
	if s.Host.RDMA == nil {
		return ok("%s; the devices were not asked: this build does not open them", peermem)
	}
	var out []string
	for _, d := range v.devices {
		o, asked := v.opened[d.Name]
		if !asked || o.err != nil {
			continue
		}
		dmabuf := "dma-buf not known"
		if o.dmabuf != nil {
			dmabuf = has(*o.dmabuf, "dma-buf")
		}
		out = append(out, fmt.Sprintf("%s: %s, %s, %s", d.Name, dmabuf, has(o.attr.RelaxedOrdering, "relaxed ordering"), has(o.attr.Windows2B, "memory windows 2B")))
	}
	if len(out) == 0 {
		out = []string{"no device was asked"}
	}
	return ok("%s; %s; this build moves host memory", strings.Join(out, "; "), peermem)
}

func has(yes bool, what string) string {
	if yes {
		return what
	}
	return "no " + what
}

// addresses shows GIDs: the one that is tried first, and how many others there are.
func addresses(r *pick.Rail) string {
	if len(r.GIDs) == 0 {
		return "no GID"
	}
	if r.LinkLayer == nic.InfiniBand {
		return fmt.Sprintf("LID %d, GID %s", r.LID, netip.AddrFrom16(r.GIDs[0].GID))
	}
	text := fmt.Sprintf("GID %d, %s (RoCE v2)", r.GIDs[0].Index, r.GIDs[0].Addr())
	if n := len(r.GIDs) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return text
}
