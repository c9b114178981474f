package verbs

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// rail is a port of this node that is used.
type rail struct {
	dev   *device
	port  int
	local pick.Rail
}

func (p *Provider) pickOptions() pick.Options {
	o := pick.Options{Allow: p.opt.Devices, Deny: p.opt.NoDevices, Networks: p.opt.Networks()}
	if p.opt.PKey != 0xffff {
		o.PKey = p.opt.PKey
	}
	if p.opt.GID != "" {
		o.GID, _ = netip.ParseAddr(p.opt.GID)
	}
	return o
}

// openRails opens the devices with usable ports. A port that is down now is none until the provider is made anew; one that goes
// down later comes back by itself. What a device says of its ports is asked of the opened one: sysfs has a file for every entry of a
// GID table, and does not know the MTU.
func (p *Provider) openRails() error {
	infos, err := p.opt.Host.Devices()
	if err != nil {
		return err
	}
	o := p.pickOptions()
	if err := o.Check(); err != nil {
		return err
	}
	var first error
	refuse := func(what string, err error) {
		p.left = append(p.left, what+": "+err.Error())
		if first == nil {
			first = err
		}
	}
	for _, info := range infos {
		wanted := info.Ports[:0:0]
		for _, port := range info.Ports {
			if why := o.Denies(info.Name, port.Port); why != "" {
				p.left = append(p.left, pick.Refusal{Device: info.Name, Port: port.Port, Why: why}.String())
			} else {
				wanted = append(wanted, port)
			}
		}
		if len(wanted) == 0 {
			continue
		}
		d, err := p.openDevice(info, len(p.devices))
		if err != nil {
			refuse(info.Name, err)
			continue
		}
		for k := range wanted {
			port, err := d.port(wanted[k].Port)
			if err != nil {
				refuse(info.Name, err)
				continue
			}
			wanted[k] = complete(port, wanted[k])
		}
		d.info.Ports = wanted
		rails, left := pick.Local([]nic.DeviceInfo{d.info}, o)
		for _, r := range left {
			p.left = append(p.left, r.String())
		}
		if len(rails) == 0 || len(p.rails) == maxRails {
			_ = d.close()
			continue
		}
		p.devices = append(p.devices, d)
		for _, r := range rails[:min(len(rails), maxRails-len(p.rails))] {
			p.rails = append(p.rails, &rail{dev: d, port: r.Port, local: r})
		}
	}
	switch {
	case len(p.rails) > 0:
		slices.SortStableFunc(p.rails, func(a, b *rail) int { return nic.CompareNames(a.local.Device, b.local.Device) })
		return nil
	case len(infos) == 0:
		return fault.New(fault.NotSupported, "verbs provider", "this host has no RDMA device")
	case len(p.left) == 1 && first != nil:
		return first
	}
	return fault.New(fault.NotSupported, "verbs provider", "no usable RDMA port: %s", strings.Join(p.left, "; "))
}

// complete adds what only the inventory knows of a port.
func complete(port, known nic.PortInfo) nic.PortInfo {
	if len(port.PKeys) == 0 {
		port.PKeys = known.PKeys
	}
	if port.Netdev == "" {
		port.Netdev = known.Netdev
	}
	if port.Gbps == 0 {
		port.Gbps = known.Gbps
	}
	return port
}

// describeRails is what a peer is told of this node's rails. Addresses come and go, so they are read anew.
func (p *Provider) describeRails() ([]pick.PeerRail, error) {
	now := p.railsNow()
	out := make([]pick.PeerRail, len(now))
	for k := range now {
		out[k] = now[k].Told()
	}
	return out, nil
}

// railsNow is the rails with their present GIDs and MTU. One that is unusable at present keeps its place, without GIDs.
func (p *Provider) railsNow() []pick.Rail {
	o := p.pickOptions()
	out := make([]pick.Rail, len(p.rails))
	for k, r := range p.rails {
		out[k] = r.local
		out[k].GIDs = nil
		port, err := r.dev.port(r.port)
		if err != nil || r.dev.usable() != nil {
			continue
		}
		for _, known := range r.dev.info.Ports {
			if known.Port == r.port {
				port = complete(port, known)
			}
		}
		info := r.dev.info
		info.Ports = []nic.PortInfo{port}
		if rails, _ := pick.Local([]nic.DeviceInfo{info}, o); len(rails) == 1 {
			out[k] = rails[0]
		}
	}
	return out
}

// Description is what the provider uses, for people.
type Description struct {
	Rails   []pick.Rail
	Left    []string // ports that are not used, each with its reason
	Windows []bool   // by rail: fences by memory windows
}

// Describe tells of the rails as they are now.
func (p *Provider) Describe() Description {
	d := Description{Rails: p.railsNow(), Left: slices.Clone(p.left)}
	for _, r := range p.rails {
		d.Windows = append(d.Windows, r.dev.windows)
	}
	return d
}

// path is the way from a port to the peer's GID.
func (p *Provider) path(r *rail, port *nic.PortInfo, own, other [16]byte, lid uint16, mtu int) (nic.Path, error) {
	k := slices.IndexFunc(port.GIDs, func(g nic.GIDInfo) bool { return g.GID == own && g.Type != nic.RoCEv1 })
	if k < 0 {
		return nic.Path{}, fault.New(fault.PeerUnreachable, "connect", "%s has no GID %s any more", r.local.Name(), netip.AddrFrom16(own).Unmap())
	}
	out := nic.Path{Port: r.port, GIDIndex: port.GIDs[k].Index, Global: port.LinkLayer == nic.Ethernet, GID: other, LID: lid,
		TrafficClass: uint8(p.opt.TrafficClass), ServiceLevel: uint8(p.opt.ServiceLevel), PKeyIndex: r.local.PKeyIndex}
	if out.MTU = min(port.MTU, mtu); out.MTU < 256 {
		return nic.Path{}, fault.New(fault.PeerUnreachable, "connect", "%s: MTU %d here, %d at the peer, want at least 256", r.local.Name(), port.MTU, mtu)
	}
	return out, nil
}

// connection is what the options say of a queue pair.
func (p *Provider) connection(d *device) nic.Connection {
	return nic.Connection{ReadInit: 1, ReadResp: 1, Timeout: p.opt.Timeout, Retries: p.opt.Retries, RNRTimer: rnrTimer, RNRRetries: rnrRetries}
}

// Receiver-not-ready: 0.64 ms, six times. Credits make it rare.
const (
	rnrTimer   = 12
	rnrRetries = 6
)
