//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const (
	opPort  = "verbs port"
	opClose = "verbs close device"
)

// inlineBytes is what a queue pair is asked to carry inside a request: control messages, not payload.
const inlineBytes = 64

// removalPatience is how long Close waits for the removal of a device that answers no more.
const removalPatience = 5 * time.Second

// device is an opened device. Locks are taken in this order: gate, the lock of a queue pair, window or registration, polling, mu.
type device struct {
	name   string
	host   *Host
	file   string      // "uverbs0"
	stat   os.FileInfo // of its entry in sysfs when it was opened
	attr   nic.Attr
	ports  int
	closed atomic.Bool
	gone   atomic.Bool // removed or failed, by its own word

	// gate is held for reading by every call that needs the context, and for writing by Close.
	gate sync.RWMutex
	c    *C.struct_kv_dev

	// polling guards the completion queues against being polled from two sides: Next, and Reset and Destroy, which take out
	// what their queue pair left. kept holds what these found of others; Next gives it out first.
	polling sync.Mutex
	kept    []nic.Completion
	sleep   [2]unix.PollFd // of Next: the completion channel, wake

	wakeFD  int // eventfd: readable when Next is to return
	stopFD  int // eventfd of the reader of events: readable once the device is closed
	woken   atomic.Bool
	channel int
	events  int

	mu       sync.Mutex
	rooms    [2]rooms // completion queues of sends, of receives
	qps      map[*queuePair]struct{}
	mrs      map[*region]struct{}
	windows  map[*window]struct{}
	closeErr error
}

func newDevice(h *Host, c *C.struct_kv_dev, name, file string) (nic.Device, error) {
	d := &device{name: name, host: h, file: file, c: c, wakeFD: -1, stopFD: -1, channel: int(c.channel.fd), events: int(c.ctx.async_fd),
		qps: map[*queuePair]struct{}{}, mrs: map[*region]struct{}{}, windows: map[*window]struct{}{}}
	err := d.prepare()
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return d, nil
}

func (d *device) prepare() error {
	for _, fd := range []*int{&d.wakeFD, &d.stopFD} {
		n, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if err != nil {
			return &fault.Error{Code: fault.ResourceExhausted, Op: opOpen, Detail: "eventfd", Err: err}
		}
		*fd = n
	}
	var err error
	if d.stat, err = os.Stat(d.node()); err != nil {
		return fault.Wrap(fault.NotSupported, opOpen, err)
	}
	d.sleep = [2]unix.PollFd{{Fd: int32(d.channel), Events: unix.POLLIN}, {Fd: int32(d.wakeFD), Events: unix.POLLIN}}
	var a C.struct_v_device_attr
	if rc := C.kv_query_device(d.c, &a); rc != 0 {
		return callFailed(opOpen, "ibv_query_device", d.name, syscall.Errno(rc))
	}
	var p C.struct_v_port_attr
	if rc := C.kv_query_port(d.c, 1, &p); rc != 0 {
		return callFailed(opOpen, "ibv_query_port", d.name, syscall.Errno(rc))
	}
	d.ports = int(a.phys_port_cnt)
	sge := int(a.max_sge)
	if rd := int(a.max_sge_rd); rd > 0 && rd < sge {
		sge = rd // a queue pair's entries are for WRITE and READ alike
	}
	d.attr = nic.Attr{
		MaxQP: int(a.max_qp), MaxQPWR: int(a.max_qp_wr), MaxSGE: sge, MaxCQE: int(a.max_cqe),
		MaxReadInit: min(int(a.max_qp_init_rd_atom), 255), MaxReadResp: min(int(a.max_qp_rd_atom), 255),
		MaxMR: uint64(a.max_mr_size), MaxMsg: uint64(p.max_msg_sz),
		Windows2B:       a.device_cap_flags&C.V_DEVICE_MEM_WINDOW_TYPE_2B != 0,
		RelaxedOrdering: d.c.lib.reg_mr_iova2 != nil,
	}
	d.rooms = [2]rooms{{entries: min(queueEntries, d.attr.MaxCQE)}, {entries: min(queueEntries, d.attr.MaxCQE)}}
	return d.probeInline()
}

// probeInline finds out what SENDs can carry: only a queue pair tells.
func (d *device) probeInline() error {
	d.attr.MaxInline = inlineBytes
	q, err := d.NewQP(nic.QPConfig{MaxSend: 1, MaxRecv: 1, MaxSGE: 1})
	if err != nil {
		return err
	}
	d.attr.MaxInline = min(inlineBytes, int(q.(*queuePair).c.max_inline))
	return q.Destroy()
}

func (d *device) Name() string   { return d.name }
func (d *device) Attr() nic.Attr { return d.attr }

// enter holds the context for one call; leave lets go of it.
func (d *device) enter(op string) error {
	d.gate.RLock()
	if d.closed.Load() {
		d.gate.RUnlock()
		return closed(op, "device "+d.name)
	}
	if d.gone.Load() {
		d.gate.RUnlock()
		return d.lost(op)
	}
	return nil
}

func (d *device) leave() { d.gate.RUnlock() }

func (d *device) lost(op string) error {
	return fault.New(fault.PeerLost, op, "RDMA device %s failed or was removed", d.name)
}

// removed waits for the kernel to have torn the device down: calls fail a little before that, but the names go after it. It is
// false where a device only stopped answering, of which nobody knows what it still does.
func (d *device) removed(patience time.Duration) bool {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		_, a := os.Lstat(filepath.Join(d.host.classes, "infiniband", d.name))
		_, b := os.Lstat(filepath.Join(d.host.classes, "infiniband_verbs", d.file)) // a renamed device has this one still
		if errors.Is(a, os.ErrNotExist) && errors.Is(b, os.ErrNotExist) {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// Port asks the device for state, MTU, LID and which GIDs are in use, and sysfs for the rest.
func (d *device) Port(port int) (nic.PortInfo, error) {
	if err := d.enter(opPort); err != nil {
		return nic.PortInfo{}, err
	}
	defer d.leave()
	if err := firstOf(within(opPort, "port", port, 1, d.ports)); err != nil {
		return nic.PortInfo{}, err
	}
	var a C.struct_v_port_attr
	if rc := C.kv_query_port(d.c, C.uint8_t(port), &a); rc != 0 {
		return nic.PortInfo{}, callFailed(opPort, "ibv_query_port", fmt.Sprintf("%s port %d", d.name, port), syscall.Errno(rc))
	}
	p := readPort(d.host.classes, d.name, port, d.gids(port))
	p.LinkLayer = nic.InfiniBand
	if a.link_layer == C.V_LINK_LAYER_ETHERNET {
		p.LinkLayer = nic.Ethernet
	}
	p.LID = uint16(a.lid)
	p.State = portState(int(a.state))
	p.Active = a.state == C.V_PORT_ACTIVE
	if a.active_mtu >= C.V_MTU_256 && a.active_mtu <= C.V_MTU_4096 {
		p.MTU = 128 << uint(a.active_mtu)
	}
	return p, nil
}

// maxGIDs is how many entries in use are asked for: the system call takes at most 64 KiB of answer.
const maxGIDs = 1024

// gids are the types of the entries in use, by index, or nil where the library or the kernel cannot say. sysfs can, but it has a
// file for every entry of a table, used or not, and some tables have a thousand.
func (d *device) gids(port int) map[int]nic.GIDType {
	if d.c.lib.query_gid_table == nil {
		return nil
	}
	table := make([]C.struct_v_gid_entry, maxGIDs)
	n := int(C.kv_gids(d.c, &table[0], maxGIDs))
	if n < 0 {
		return nil
	}
	used := map[int]nic.GIDType{}
	for _, e := range table[:n] {
		if int(e.port_num) != port {
			continue
		}
		switch e.gid_type {
		case C.V_GID_TYPE_IB:
			used[int(e.gid_index)] = nic.GIDInfiniBand
		case C.V_GID_TYPE_ROCE_V1:
			used[int(e.gid_index)] = nic.RoCEv1
		case C.V_GID_TYPE_ROCE_V2:
			used[int(e.gid_index)] = nic.RoCEv2
		}
	}
	return used
}

func portState(s int) string {
	switch s {
	case C.V_PORT_DOWN:
		return "DOWN"
	case C.V_PORT_INIT:
		return "INIT"
	case C.V_PORT_ARMED:
		return "ARMED"
	case C.V_PORT_ACTIVE:
		return "ACTIVE"
	case C.V_PORT_ACTIVE_DEFER:
		return "ACTIVE_DEFER"
	}
	return "NOP"
}

// Close destroys what is left and gives the context back. A second call gives the first one's answer.
func (d *device) Close() error {
	d.closed.Store(true)
	d.gate.RLock()
	signal(d.wakeFD)
	signal(d.stopFD)
	d.gate.RUnlock()
	d.gate.Lock()
	defer d.gate.Unlock()
	if d.c == nil {
		return d.closeErr
	}
	var errs []error
	lost := 0
	refused := func(call string, rc syscall.Errno) {
		if rc == syscall.EIO || rc == syscall.ENODEV {
			lost++
		}
		errs = append(errs, callFailed(opClose, call, d.name, rc))
	}
	for w := range d.windows { // before the queue pairs that they are bound on, whose destruction would wait for them
		w.end(refused)
	}
	for q := range d.qps {
		q.end(refused)
	}
	for m := range d.mrs {
		m.end(refused)
	}
	var step *C.char
	if rc := C.kv_close(d.c, &step); rc != 0 {
		refused(C.GoString(step), syscall.Errno(rc))
	}
	d.c = nil
	for _, fd := range []int{d.wakeFD, d.stopFD} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	d.wakeFD, d.stopFD = -1, -1
	if len(errs) > 0 && (lost < len(errs) || !d.removed(removalPatience)) {
		d.closeErr = &fault.Error{Code: fault.CodeOf(errs[0]), Op: opClose, Detail: "the device did not give everything back", Err: errors.Join(errs...)}
	}
	return d.closeErr
}

// signal makes an eventfd readable.
func signal(fd int) {
	if fd >= 0 {
		one := [8]byte{7: 1, 0: 1} // not zero in either byte order
		_, _ = unix.Write(fd, one[:])
	}
}

// drain makes it unreadable again.
func drain(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}
