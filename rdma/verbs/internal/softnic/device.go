package softnic

import (
	"time"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// device is an opened device: a protection domain, a completion queue, a list of events. It implements nic.Device.
type device struct {
	a       *Adapter
	f       *Fabric
	cq      cq
	events  eventQueue
	windows map[*window]struct{}
	pinned  uint64
	entries int // completions that room is kept for
	closed  bool
}

func newDevice(a *Adapter) *device {
	d := &device{a: a, f: a.f, windows: map[*window]struct{}{}}
	d.cq.notify = make(chan struct{}, 1)
	d.events.cond.L = &d.events.mu
	return d
}

func (d *device) Name() string { return d.a.conf.Name }

func (d *device) Attr() nic.Attr {
	c := d.a.conf
	return nic.Attr{MaxQP: c.MaxQP, MaxQPWR: c.MaxQPWR, MaxSGE: c.MaxSGE, MaxCQE: c.MaxCQE, MaxReadInit: c.MaxReadInit, MaxReadResp: c.MaxReadResp,
		MaxMR: c.MaxMR, MaxMsg: c.MaxMsg, Windows2B: c.Windows2B, RelaxedOrdering: true}
}

// may says why a call cannot be made; the lock is held.
func (d *device) may(call, verb string) error {
	if d.closed {
		return fault.New(fault.Closed, verb, "the device was closed")
	}
	if d.a.removed {
		return gone(verb)
	}
	return d.a.refused(call)
}

func (d *device) Port(port int) (nic.PortInfo, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.may("Port", "ibv_query_port"); err != nil {
		return nic.PortInfo{}, err
	}
	if port < 1 || port > len(d.a.conf.Ports) {
		return nic.PortInfo{}, fault.Invalid("ibv_query_port", "port", "%d, allowed 1 to %d", port, len(d.a.conf.Ports))
	}
	return d.a.port(port - 1), nil
}

func (d *device) Register(base unsafe.Pointer, length uint64, access nic.Access) (nic.MR, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.may("Register", "ibv_reg_mr"); err != nil {
		return nil, err
	}
	switch {
	case length == 0 || length > d.a.conf.MaxMR:
		return nil, fault.New(fault.ResourceExhausted, "ibv_reg_mr", "%d bytes, allowed 1 to %d: EINVAL", length, d.a.conf.MaxMR)
	case d.a.conf.MaxPinned > 0 && d.pinned+length > d.a.conf.MaxPinned:
		return nil, fault.New(fault.ResourceExhausted, "ibv_reg_mr", "%d bytes do not fit into RLIMIT_MEMLOCK (%d, %d in use): ENOMEM", length, d.a.conf.MaxPinned, d.pinned)
	case access&nic.RemoteWrite != 0 && access&nic.LocalWrite == 0:
		return nil, fault.Invalid("ibv_reg_mr", "access", "RemoteWrite needs LocalWrite")
	}
	m := &mr{d: d, base: base, addr: uint64(uintptr(base)), length: length, access: access, key: d.a.newKey()}
	d.a.mrs[m.key] = m
	d.pinned += length
	return m, nil
}

func (d *device) NewWindow() (nic.Window, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.may("NewWindow", "ibv_alloc_mw"); err != nil {
		return nil, err
	}
	if !d.a.conf.Windows2B {
		return nil, fault.New(fault.NotSupported, "ibv_alloc_mw", "device %s has no memory windows of type 2B", d.a.conf.Name)
	}
	w := &window{d: d, key: d.a.newKey()}
	d.windows[w] = struct{}{}
	d.a.allocated++
	return w, nil
}

func (d *device) NewQP(c nic.QPConfig) (nic.QP, error) {
	d.f.lock()
	defer d.f.unlock()
	if err := d.may("NewQP", "ibv_create_qp"); err != nil {
		return nil, err
	}
	conf := &d.a.conf
	for _, x := range []struct {
		field              string
		value, least, most int
	}{{"max_send", c.MaxSend, 0, conf.MaxQPWR}, {"max_recv", c.MaxRecv, 0, conf.MaxQPWR}, {"max_sge", c.MaxSGE, 1, conf.MaxSGE}, {"max_signaled", c.MaxSignaled, 0, c.MaxSend}} {
		if x.value < x.least || x.value > x.most {
			return nil, fault.Invalid("ibv_create_qp", x.field, "%d, allowed %d to %d", x.value, x.least, x.most)
		}
	}
	if len(d.a.qps) >= conf.MaxQP || d.entries+c.MaxSignaled+c.MaxRecv > conf.MaxCQE {
		return nil, fault.New(fault.ResourceExhausted, "ibv_create_qp", "%d queue pairs of %d, room for %d completions of %d: ENOMEM", len(d.a.qps), conf.MaxQP, d.entries, conf.MaxCQE)
	}
	d.entries += c.MaxSignaled + c.MaxRecv
	q := newQP(d, c, d.a.newQPN())
	d.a.qps[q.num] = q
	return q, nil
}

func (d *device) Next(dst []nic.Completion, spin, sleep time.Duration) (int, error) {
	return d.cq.next(dst, spin, sleep)
}

func (d *device) Wake() { d.cq.wake() }

func (d *device) NextEvent() (nic.Event, error) { return d.events.next() }

func (d *device) Close() error {
	d.f.lock()
	if d.closed {
		d.f.unlock()
		return nil
	}
	if err := d.a.refused("Close"); err != nil {
		d.f.unlock()
		return err
	}
	d.closed = true
	delete(d.a.opened, d)
	for _, q := range d.a.qps {
		if q.d == d {
			q.destroy()
		}
	}
	for w := range d.windows {
		w.drop()
	}
	for _, m := range d.a.mrs {
		if m.d == d {
			m.drop()
		}
	}
	err := fault.New(fault.Closed, "ibv_poll_cq", "the device was closed")
	d.cq.end(err)
	d.events.end(fault.New(fault.Closed, "ibv_get_async_event", "the device was closed"))
	ended := d.f.closed()
	d.f.unlock()
	if ended != nil {
		<-ended
	}
	return nil
}
