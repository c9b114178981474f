//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const (
	opRegister   = "verbs register"
	opDeregister = "verbs deregister"
	opWindow     = "verbs window"
)

// access translates nic's flags.
func access(a nic.Access) C.uint {
	var f C.uint
	for _, x := range [...]struct {
		have nic.Access
		want C.uint
	}{{nic.LocalWrite, C.V_ACCESS_LOCAL_WRITE}, {nic.RemoteWrite, C.V_ACCESS_REMOTE_WRITE}, {nic.RemoteRead, C.V_ACCESS_REMOTE_READ},
		{nic.WindowBind, C.V_ACCESS_MW_BIND}, {nic.Relaxed, C.V_ACCESS_RELAXED_ORDERING}} {
		if a&x.have != 0 {
			f |= x.want
		}
	}
	return f
}

// region is a registration.
type region struct {
	d          *device
	lkey, rkey uint32

	mu   sync.Mutex
	c    *C.struct_v_mr // nil once deregistered
	fail error          // why the device's Close could not
}

func (d *device) Register(base unsafe.Pointer, length uint64, a nic.Access) (nic.MR, error) {
	if err := d.enter(opRegister); err != nil {
		return nil, err
	}
	defer d.leave()
	if base == nil || length == 0 {
		return nil, fault.Invalid(opRegister, "length", "%d bytes at %p: neither may be zero", length, base)
	}
	if d.attr.MaxMR > 0 && length > d.attr.MaxMR {
		return nil, fault.Invalid(opRegister, "length", "%d is more than device %s registers at once, %d", length, d.name, d.attr.MaxMR)
	}
	m := &region{d: d}
	if rc := C.kv_reg_mr(d.c, base, C.size_t(length), access(a), &m.c); rc != 0 {
		errno := syscall.Errno(rc)
		if errno == syscall.ENOMEM {
			if e := memlock(length); e != nil {
				return nil, e
			}
		}
		return nil, callFailed(opRegister, "ibv_reg_mr", fmt.Sprintf("%s on %s", size(length), d.name), errno)
	}
	m.lkey, m.rkey = uint32(m.c.lkey), uint32(m.c.rkey)
	d.mu.Lock()
	d.mrs[m] = struct{}{}
	d.mu.Unlock()
	return m, nil
}

// memlock explains a refused registration by the limit on pinned memory, or gives nil where that is not it.
func memlock(length uint64) error {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l) != nil || l.Cur == unix.RLIM_INFINITY {
		return nil
	}
	status, _ := os.ReadFile("/proc/self/status")
	pinned := statusBytes(status, "VmPin:")
	if pinned+length <= l.Cur {
		return nil
	}
	return fault.New(fault.ResourceExhausted, opRegister,
		"RLIMIT_MEMLOCK is %s (%d bytes) and %s are pinned already, %s more are wanted: raise it (LimitMEMLOCK=infinity in a unit, `ulimit -l unlimited`, --ulimit memlock=-1 for a container) or give CAP_IPC_LOCK outside user namespaces",
		size(l.Cur), l.Cur, size(pinned), size(length))
}

// statusBytes reads a line such as "VmPin:	   64 kB" of /proc/self/status.
func statusBytes(status []byte, field string) uint64 {
	for l := range bytes.Lines(status) {
		if rest, ok := strings.CutPrefix(string(l), field); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}

func (m *region) LKey() uint32 { return m.lkey }
func (m *region) RKey() uint32 { return m.rkey }

func (m *region) Close() error {
	m.d.gate.RLock()
	defer m.d.gate.RUnlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.c == nil {
		return m.fail
	}
	if rc := C.kv_dereg_mr(m.d.c, m.c); rc != 0 {
		return callFailed(opDeregister, "ibv_dereg_mr", "is a window still bound to it?", syscall.Errno(rc))
	}
	m.c = nil
	m.d.mu.Lock()
	delete(m.d.mrs, m)
	m.d.mu.Unlock()
	return nil
}

// end is what the device's Close does with a registration that is left.
func (m *region) end(refused func(string, syscall.Errno)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if rc := C.kv_dereg_mr(m.d.c, m.c); rc != 0 {
		m.fail = callFailed(opDeregister, "ibv_dereg_mr", "the device was closed", syscall.Errno(rc))
		refused("ibv_dereg_mr", syscall.Errno(rc))
	}
	m.c = nil
}

// window is a memory window of type 2.
type window struct {
	d *device

	mu   sync.Mutex
	c    *C.struct_v_mw // nil once deallocated
	fail error
}

func (d *device) NewWindow() (nic.Window, error) {
	if err := d.enter(opWindow); err != nil {
		return nil, err
	}
	defer d.leave()
	if !d.attr.Windows2B {
		return nil, fault.New(fault.NotSupported, opWindow, "device %s has no memory windows of type 2B", d.name)
	}
	w := &window{d: d}
	if rc := C.kv_alloc_mw(d.c, &w.c); rc != 0 {
		return nil, callFailed(opWindow, "ibv_alloc_mw", d.name, syscall.Errno(rc))
	}
	d.mu.Lock()
	d.windows[w] = struct{}{}
	d.mu.Unlock()
	return w, nil
}

func (w *window) RKey() uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.c == nil {
		return 0
	}
	return uint32(w.c.rkey)
}

func (w *window) Close() error {
	w.d.gate.RLock()
	defer w.d.gate.RUnlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.c == nil {
		return w.fail
	}
	if rc := C.kv_dealloc_mw(w.c); rc != 0 {
		return callFailed(opWindow, "ibv_dealloc_mw", w.d.name, syscall.Errno(rc))
	}
	w.c = nil
	w.d.mu.Lock()
	delete(w.d.windows, w)
	w.d.mu.Unlock()
	return nil
}

func (w *window) end(refused func(string, syscall.Errno)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if rc := C.kv_dealloc_mw(w.c); rc != 0 {
		w.fail = callFailed(opWindow, "ibv_dealloc_mw", "the device was closed", syscall.Errno(rc))
		refused("ibv_dealloc_mw", syscall.Errno(rc))
	}
	w.c = nil
}
