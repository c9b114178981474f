package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs"
)

// Ports makes a check of each port of an RDMA device, "port-DEVICE:N", in the order of names.
func Ports(s *Subject) (out []Check) {
	v := s.devices()
	for _, d := range v.devices {
		for _, p := range d.Ports {
			c := s.onePort(&d, &p)
			c.ID = fmt.Sprintf("port-%s:%d", d.Name, p.Port)
			out = append(out, c)
		}
	}
	return out
}

// Losses that are told as trouble: more than so many, and more than one of so many packets. A card that was started has lost some.
const (
	fewLosses  = 100
	perPackets = 10_000
)

func (s *Subject) rail(d *nic.DeviceInfo, p *nic.PortInfo) *pick.Rail {
	for i := range s.devices().rails {
		if r := &s.devices().rails[i]; r.Device == d.Name && r.Port == p.Port {
			return r
		}
	}
	return nil
}

func (s *Subject) refusal(d *nic.DeviceInfo, p *nic.PortInfo) pick.Refusal {
	for _, r := range s.devices().left {
		if r.Device == d.Name && r.Port == p.Port {
			return r
		}
	}
	return pick.Refusal{}
}

func (s *Subject) onePort(d *nic.DeviceInfo, p *nic.PortInfo) Check {
	text := []string{p.State + ", " + p.LinkLayer.String()}
	if p.Netdev != "" {
		text[0] += " on " + p.Netdev
	}
	if p.Gbps > 0 {
		text = append(text, fmt.Sprintf("%g Gbit/s", p.Gbps))
	}
	text = append(text, s.mtu(d, p))
	if d.NUMA >= 0 {
		text = append(text, fmt.Sprintf("NUMA node %d", d.NUMA))
	}
	r := s.rail(d, p)
	if r == nil {
		no := s.refusal(d, p)
		why := no.Why
		if none := sysfs.WhyNoGIDs(s.Host.FS, d.Name, *p); none != "" && no.Remedy != "" && p.Active {
			why = none
		}
		finding := fmt.Sprintf("%s; not used: %s", strings.Join(text, ", "), why)
		if no.Remedy != "" {
			return warn(no.Remedy, "%s", finding)
		}
		return ok("%s", finding)
	}
	text = append(text, addresses(r), s.ecn(p))
	t := sysfs.ReadTraffic(s.Host.FS, d.Name, p.Port)
	text = append(text, account(&t))
	finding := strings.Join(text, ", ")
	if lost := t.Lost(); t.PacketsKnown && lost > fewLosses && lost > t.SentPackets/perPackets+t.ReceivedPackets/perPackets {
		return warn("find out where packets are lost, if the numbers still grow: flow control (PFC) and ECN on card and switch for the traffic class that is used, cables (ethtool -S), MTU", "%s", finding)
	}
	return ok("%s", finding)
}

// mtu tells the RDMA packets' payload; what /sys does not know is derived from the interface's.
func (s *Subject) mtu(d *nic.DeviceInfo, p *nic.PortInfo) string {
	if q := s.devices().opened[d.Name].ports[p.Port]; q.MTU > 0 {
		return fmt.Sprintf("MTU %d", q.MTU)
	}
	if p.MTU == 0 {
		return "MTU not known"
	}
	return fmt.Sprintf("MTU %d (derived from %s of %s)", p.MTU, s.Host.text("/sys/class/net/"+p.Netdev+"/mtu"), p.Netdev)
}

// ecn tells for which priorities the card heeds congestion. Of flow control /sys has nothing.
func (s *Subject) ecn(p *nic.PortInfo) string {
	if p.LinkLayer != nic.Ethernet {
		return "credit flow control"
	}
	e, known := sysfs.ReadECN(s.Host.FS, p.Netdev)
	if !known {
		return "ECN and PFC not readable here (dcb pfc show dev " + p.Netdev + ")"
	}
	return fmt.Sprintf("ECN: notifies for priorities %s, slows down for %s; PFC not readable here (dcb pfc show dev %s)", priorities(e.Notify), priorities(e.React), p.Netdev)
}

func priorities(of []int) string {
	if len(of) == 0 {
		return "none"
	}
	var out []string
	for _, p := range of {
		out = append(out, strconv.Itoa(p))
	}
	return strings.Join(out, ",")
}

// account tells what the counters have counted of losses and congestion.
func account(t *sysfs.Traffic) string {
	if len(t.Events) == 0 {
		return "no counters of losses here"
	}
	var out []string
	for _, m := range sysfs.Events {
		if n := t.Events[m.Event]; n > 0 {
			out = append(out, fmt.Sprintf("%s %d", m.Event, n))
		}
	}
	if len(out) == 0 {
		return "no losses and no congestion counted"
	}
	text := "counted since its driver was loaded: " + strings.Join(out, ", ")
	if t.PacketsKnown {
		text += fmt.Sprintf(" (packets: %d sent, %d received)", t.SentPackets, t.ReceivedPackets)
	}
	return text
}
