//go:build cgo && linux

package ibv

// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "shim.h"
import "C"

import (
	"errors"
	"io/fs"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const opOpen = "verbs open"

// Host is the RDMA stack of this machine.
type Host struct {
	library string // what the loader is asked for
	classes string
	files   string // the folder of the character devices

	mu  sync.Mutex
	lib *C.struct_kv_lib // nil until it was loaded; a failure is tried again, because it may be installed meanwhile
}

// New returns the host's RDMA stack. Nothing is loaded or opened yet.
func New() *Host {
	return &Host{library: "libibverbs.so.1", classes: classes, files: "/dev/infiniband"}
}

// Devices lists what is there, without the library. PortInfo.MTU is 0: only an opened device tells.
func (h *Host) Devices() ([]nic.DeviceInfo, error) { return listDevices(h.classes) }

func (h *Host) load() (*C.struct_kv_lib, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.lib != nil {
		return h.lib, nil
	}
	path := C.CString(h.library)
	defer C.free(unsafe.Pointer(path))
	var why [512]C.char
	if h.lib = C.kv_load(path, &why[0], C.size_t(len(why))); h.lib == nil {
		return nil, fault.New(fault.NotSupported, opOpen,
			"libibverbs cannot be used: %s; install rdma-core's library (Debian: libibverbs1 and ibverbs-providers, Red Hat: libibverbs)", C.GoString(&why[0]))
	}
	return h.lib, nil
}

// file finds and tries the character device of a device. The library would only say that there is no such device.
func (h *Host) file(name string) (string, error) {
	if _, err := filepath.EvalSymlinks(filepath.Join(h.classes, "infiniband", name)); err != nil || name == "" || filepath.Base(name) != name {
		return "", fault.New(fault.NotSupported, opOpen, "there is no RDMA device %q (%s/infiniband has none of that name): is its driver loaded, is it in this network namespace?", name, h.classes)
	}
	u := uverbs(h.classes, name)
	if u == "" {
		return "", fault.New(fault.NotSupported, opOpen, "the kernel gives programs no access to device %s: load its module with `modprobe ib_uverbs`", name)
	}
	path := filepath.Join(h.files, u)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		_ = unix.Close(fd)
		return u, nil
	case errors.Is(err, fs.ErrNotExist):
		return "", fault.New(fault.NotSupported, opOpen, "device %s has no file %s here: a container must be given it (--device %s), a host needs udev or devtmpfs", name, path, path)
	case errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM):
		return "", fault.New(fault.PermissionDenied, opOpen, "%s may not be opened for reading and writing (%v): give this user's group access to it, or allow it in the container's device list", path, err)
	}
	return "", &fault.Error{Code: fault.Internal, Op: opOpen, Detail: "open " + path, Err: err}
}

// Open loads the library, where that was not done, and opens the device.
func (h *Host) Open(name string) (nic.Device, error) {
	lib, err := h.load()
	if err != nil {
		return nil, err
	}
	u, err := h.file(name)
	if err != nil {
		return nil, err
	}
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	var c *C.struct_kv_dev
	var step *C.char
	if rc := C.kv_open(lib, cname, &c, &step); rc != 0 {
		call, errno := C.GoString(step), syscall.Errno(rc)
		if call == "ibv_get_device_list" {
			return nil, fault.New(fault.NotSupported, opOpen,
				"libibverbs does not know device %s (%s: %v): its driver's library is missing; install rdma-core's providers (Debian: ibverbs-providers)", name, call, errno)
		}
		return nil, callFailed(opOpen, call, name, errno)
	}
	return newDevice(h, c, name, u)
}
