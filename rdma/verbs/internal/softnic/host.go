package softnic

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Device says what a simulated device is. Zero limits stand for generous ones.
type Device struct {
	Name  string
	NUMA  int
	Bus   string
	Ports []nic.PortInfo // in the order of their numbers, which are filled in where 0

	Windows2B                bool
	MaxQP, MaxQPWR, MaxSGE   int
	MaxCQE                   int
	MaxReadInit, MaxReadResp int
	MaxMR, MaxMsg            uint64
	// LazyWrites is how much later than their acknowledgement leaves the bytes of a WRITE may reach memory, as through PCIe; 0: not
	// later. The completion of a RECEIVE waits for them, what comes over another connection does not.
	LazyWrites time.Duration
	MaxPinned  uint64 // bytes of all registrations of one opened device, like RLIMIT_MEMLOCK; 0: no limit
}

func (d Device) withDefaults() Device {
	for _, x := range []struct {
		field *int
		value int
	}{{&d.MaxQP, 4096}, {&d.MaxQPWR, 16384}, {&d.MaxSGE, 32}, {&d.MaxCQE, 1 << 20}, {&d.MaxReadInit, 16}, {&d.MaxReadResp, 16}} {
		if *x.field == 0 {
			*x.field = x.value
		}
	}
	if d.MaxMR == 0 {
		d.MaxMR = 1 << 46
	}
	if d.MaxMsg == 0 {
		d.MaxMsg = 8 << 20
	}
	d.Ports = append([]nic.PortInfo(nil), d.Ports...)
	for i := range d.Ports {
		p := &d.Ports[i]
		if p.Port == 0 {
			p.Port = i + 1
		}
		if p.LinkLayer == 0 {
			p.LinkLayer = nic.Ethernet
		}
		if p.MTU == 0 {
			p.MTU = maxMTU
		}
		if p.State == "" {
			setActive(p, p.Active)
		}
	}
	return d
}

// Host is one simulated machine; it implements nic.Host.
type Host struct {
	f        *Fabric
	name     string
	adapters map[string]*Adapter
	order    []*Adapter
}

// Host makes a host with devices. A name may be used once.
func (f *Fabric) Host(name string, devices ...Device) *Host {
	f.lock()
	defer f.unlock()
	h := &Host{f: f, name: name, adapters: map[string]*Adapter{}}
	for _, d := range devices {
		a := &Adapter{f: f, host: h, conf: d.withDefaults(), qps: map[uint32]*qp{}, mrs: map[uint32]*mr{}, windows: map[uint32]*window{},
			nextQPN: f.rng.Uint32N(1<<20) + 16, nextKey: f.rng.Uint32N(1 << 12), opened: map[*device]struct{}{}}
		h.adapters[d.Name] = a
		h.order = append(h.order, a)
	}
	f.hosts[name] = h
	f.routes++
	return h
}

// Devices lists the devices that were not removed.
func (h *Host) Devices() ([]nic.DeviceInfo, error) {
	h.f.lock()
	defer h.f.unlock()
	var list []nic.DeviceInfo
	for _, a := range h.order {
		if !a.removed {
			d := nic.DeviceInfo{Name: a.conf.Name, NUMA: a.conf.NUMA, Bus: a.conf.Bus}
			for i := range a.conf.Ports {
				d.Ports = append(d.Ports, a.port(i))
			}
			list = append(list, d)
		}
	}
	return list, nil
}

// Open opens a device. Each opening is a protection domain of its own.
func (h *Host) Open(name string) (nic.Device, error) {
	h.f.lock()
	defer h.f.unlock()
	a := h.adapters[name]
	if a == nil || a.removed {
		return nil, fault.New(fault.NotSupported, "ibv_open_device", "there is no device %q", name)
	}
	if err := a.refused("Open"); err != nil {
		return nil, err
	}
	d := newDevice(a)
	a.opened[d] = struct{}{}
	h.f.opened()
	return d, nil
}

// Adapter gives a device of the host to a test, to do things to it. It is nil where there is none.
func (h *Host) Adapter(name string) *Adapter { return h.adapters[name] }

// Adapter is the hardware of a device: what all who opened it share, and what a test may do to it.
type Adapter struct {
	f       *Fabric
	host    *Host
	conf    Device
	removed bool
	refuse  func(call string) error
	qps     map[uint32]*qp
	mrs     map[uint32]*mr
	windows map[uint32]*window // by the key that is valid now
	opened  map[*device]struct{}

	stores    []store
	allocated int // windows
	nextQPN   uint32
	nextKey   uint32
	free      []uint32 // keys of what was closed, the oldest first
}

// port copies a port's description; the lock is held.
func (a *Adapter) port(i int) nic.PortInfo {
	p := a.conf.Ports[i]
	p.GIDs = append([]nic.GIDInfo(nil), p.GIDs...)
	return p
}

// Ports are counted from 1; a number that is none is a mistake of the test and panics.
func (a *Adapter) at(port int) *nic.PortInfo { return &a.conf.Ports[port-1] }

// SetPortActive takes a port up or down; who opened the device gets an event when that changes something. Packets that come to
// or leave from a port that is down are lost.
func (a *Adapter) SetPortActive(port int, active bool) {
	a.f.lock()
	defer a.f.unlock()
	p := a.at(port)
	if p.Active == active {
		return
	}
	a.f.routes++
	kind := nic.PortDown
	if active {
		kind = nic.PortUp
	}
	setActive(p, active)
	a.tell(nic.Event{Kind: kind, Port: port})
}

func setActive(p *nic.PortInfo, active bool) {
	p.Active, p.State = active, "DOWN"
	if active {
		p.State = "ACTIVE"
	}
}

// ChangePort lets change edit a port's description (its GIDs, LID, MTU); who opened the device gets PortChanged.
func (a *Adapter) ChangePort(port int, change func(*nic.PortInfo)) {
	a.f.lock()
	defer a.f.unlock()
	change(a.at(port))
	a.f.routes++
	a.tell(nic.Event{Kind: nic.PortChanged, Port: port})
}

// Remove takes the device out of its host: DeviceFatal comes, every call but Close fails with PeerLost, and nothing moves any more.
func (a *Adapter) Remove() {
	a.f.lock()
	defer a.f.unlock()
	if a.removed {
		return
	}
	a.removed = true
	a.f.routes++
	a.flush()
	for _, q := range a.qps {
		q.forget()
	}
	a.tell(nic.Event{Kind: nic.DeviceFatal, Text: "device removed"})
	for d := range a.opened {
		d.cq.end(gone("ibv_poll_cq"))
	}
}

// FailQP moves a queue pair to ERR, as a fault of the device does: its requests are flushed and QPFatal comes. It reports whether
// there is such a queue pair in RTS.
func (a *Adapter) FailQP(qpn uint32) bool {
	a.f.lock()
	defer a.f.unlock()
	q := a.qps[qpn]
	if q == nil || q.state != stateRTS {
		return false
	}
	q.toError(nic.Flushed)
	q.fatal("injected")
	return true
}

// Refuse lets refuse decide before each call whether it fails; the call then changes nothing. Calls are named like the methods of
// package nic: "Open", "Port", "Register", "NewWindow", "NewQP", "Connect", "Post", "PostRecv", "Bind", "Invalidate", "Fail", "Reset", "Destroy",
// "MR.Close", "Window.Close", "Close". refuse runs under the fabric's lock and must not call back. nil ends it.
func (a *Adapter) Refuse(refuse func(call string) error) {
	a.f.lock()
	defer a.f.unlock()
	a.refuse = refuse
}

func (a *Adapter) refused(call string) error {
	if a.refuse == nil {
		return nil
	}
	return a.refuse(call)
}

// Objects counts what is there, for tests that look for leaks.
type Objects struct{ Devices, QPs, MRs, Windows int }

// Objects counts what was opened, made and registered, and not closed.
func (a *Adapter) Objects() Objects {
	a.f.lock()
	defer a.f.unlock()
	return Objects{Devices: len(a.opened), QPs: len(a.qps), MRs: len(a.mrs), Windows: a.allocated}
}

func (a *Adapter) tell(e nic.Event) {
	for d := range a.opened {
		d.events.push(e)
	}
}

func gone(op string) error {
	return fault.New(fault.PeerLost, op, "the device is gone: EIO")
}
