//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const opEvent = "verbs events"

// lookEvery is how often the reader of events looks whether the device is still there: a driver that cannot take a device from its
// users, as rdma_rxe, lets its removal wait for them and does not tell them. The name of its character device goes first.
const lookEvery = 500 * time.Millisecond

// NextEvent sleeps in poll(2) until there is an event or the device is closed. After DeviceFatal it waits for Close alone.
func (d *device) NextEvent() (nic.Event, error) {
	d.gate.RLock()
	defer d.gate.RUnlock()
	for {
		if d.closed.Load() {
			return nic.Event{}, closed(opEvent, "device "+d.name)
		}
		fds := []unix.PollFd{{Fd: int32(d.stopFD), Events: unix.POLLIN}, {Fd: int32(d.events), Events: unix.POLLIN}}
		if d.gone.Load() {
			fds = fds[:1]
		} else {
			var kind, port C.int
			var qpn C.uint32_t
			switch rc := syscall.Errno(C.kv_event(d.c, &kind, &qpn, &port)); rc {
			case 0:
				e := event(int(kind))
				e.QPN, e.Port = uint32(qpn), int(port)
				if int(kind) == C.V_EVENT_DEVICE_FATAL {
					d.fell()
				}
				return e, nil
			case syscall.EAGAIN, syscall.EINTR:
			case syscall.EIO, syscall.ENODEV:
				d.fell()
				return nic.Event{Kind: nic.DeviceFatal, Text: "device removed"}, nil
			default:
				return nic.Event{}, callFailed(opEvent, "ibv_get_async_event", d.name, rc)
			}
		}
		var look *unix.Timespec
		if len(fds) > 1 {
			t := unix.NsecToTimespec(int64(lookEvery))
			look = &t
		}
		n, err := unix.Ppoll(fds, look, nil)
		if err != nil && err != unix.EINTR {
			return nic.Event{}, callFailed(opEvent, "ppoll", d.name, err.(syscall.Errno))
		}
		if n == 0 && err == nil && look != nil && !d.there() {
			d.fell()
			return nic.Event{Kind: nic.DeviceFatal, Text: "device removed"}, nil
		}
	}
}

// there says whether the kernel still has the character device that was opened, and not another one of its number.
func (d *device) there() bool {
	now, err := os.Stat(d.node())
	return err == nil && os.SameFile(now, d.stat)
}

// node is the character device in sysfs.
func (d *device) node() string { return filepath.Join(d.host.classes, "infiniband_verbs", d.file) }

// fell ends Next, which learns nothing more from the device.
func (d *device) fell() {
	d.gone.Store(true)
	signal(d.wakeFD)
}

func event(kind int) nic.Event {
	known := map[int]nic.Event{
		C.V_EVENT_CQ_ERR:              {Kind: nic.DeviceFatal, Text: "a completion queue failed"},
		C.V_EVENT_QP_FATAL:            {Kind: nic.QPFatal, Text: "queue pair failed"},
		C.V_EVENT_QP_REQ_ERR:          {Kind: nic.QPFatal, Text: "invalid request at a queue pair"},
		C.V_EVENT_QP_ACCESS_ERR:       {Kind: nic.QPFatal, Text: "access violation at a queue pair"},
		C.V_EVENT_DEVICE_FATAL:        {Kind: nic.DeviceFatal, Text: "device failed or was removed"},
		C.V_EVENT_PORT_ACTIVE:         {Kind: nic.PortUp, Text: "port active"},
		C.V_EVENT_PORT_ERR:            {Kind: nic.PortDown, Text: "port down"},
		C.V_EVENT_LID_CHANGE:          {Kind: nic.PortChanged, Text: "LID changed"},
		C.V_EVENT_PKEY_CHANGE:         {Kind: nic.PortChanged, Text: "P_Key table changed"},
		C.V_EVENT_SM_CHANGE:           {Kind: nic.PortChanged, Text: "subnet manager changed"},
		C.V_EVENT_CLIENT_REREGISTER:   {Kind: nic.PortChanged, Text: "subnet manager asks to register again"},
		C.V_EVENT_GID_CHANGE:          {Kind: nic.PortChanged, Text: "GID table changed"},
		C.V_EVENT_COMM_EST:            {Text: "first packet before the connection stood"},
		C.V_EVENT_SQ_DRAINED:          {Text: "send queue drained"},
		C.V_EVENT_QP_LAST_WQE_REACHED: {Text: "last request reached"},
	}
	e, ok := known[kind]
	if !ok {
		e.Text = "event of another kind"
	}
	if e.Kind == 0 {
		e.Kind = nic.OtherEvent
	}
	return e
}
