package hostmem

import (
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Allocate makes a memory object as a client would hand it over, zeroed and of size bytes, and maps it: the daemon's own
// memory for probes. It is gone with Close. ResourceExhausted where the memory is not there.
func Allocate(name string, size uint64) (*Mapping, error) {
	const op = "allocate"
	failed := func(what string, err error) error {
		e := fault.New(fault.ResourceExhausted, op, "%s of %d bytes", what, size)
		e.Region, e.Err = name, err
		return e
	}
	fd, err := unix.MemfdCreate("kvxfer-"+name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, failed("memfd_create", err)
	}
	if err := unix.Fallocate(fd, 0, 0, int64(size)); err != nil {
		_ = unix.Close(fd)
		return nil, failed("fallocate", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sealsRequired); err != nil {
		_ = unix.Close(fd)
		return nil, failed("sealing a memfd", err)
	}
	return Map(fd, name, size)
}
