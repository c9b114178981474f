//go:build cgo && linux

package ibv

// #include "shim.h"
import "C"

import (
	"syscall"

	"github.com/kvxfer/kvxfer/internal/fault"
)

const opDMABuf = "verbs dma-buf"

// ProbeDMABuf implements nic.DMABufProber.
func (d *device) ProbeDMABuf() error {
	if err := d.enter(opDMABuf); err != nil {
		return err
	}
	defer d.leave()
	switch rc := C.kv_probe_dmabuf(d.c); rc {
	case -1:
		return fault.New(fault.NotSupported, opDMABuf, "this libibverbs has no ibv_reg_dmabuf_mr: its rdma-core is too old to ask")
	case 0:
		return fault.New(fault.Internal, opDMABuf, "%s registered a dma-buf that there is not", d.name)
	default:
		return callFailed(opDMABuf, "ibv_reg_dmabuf_mr", "of descriptor -1 on "+d.name, syscall.Errno(rc))
	}
}
