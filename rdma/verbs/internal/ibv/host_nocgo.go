//go:build !cgo || !linux

package ibv

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Host is the RDMA stack of a build that cannot use it.
type Host struct{}

// New returns the host's RDMA stack.
func New() *Host { return &Host{} }

// Devices lists what is there.
func (*Host) Devices() ([]nic.DeviceInfo, error) { return listDevices(classes) }

// Open fails with NotSupported.
func (*Host) Open(name string) (nic.Device, error) {
	return nil, fault.New(fault.NotSupported, "verbs open", "device %s: this build has no cgo, which libibverbs needs; build with CGO_ENABLED=1 and a C compiler", name)
}
