//go:build cgo && linux

package ibv

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// names are the devices that tests may use: those of KVXFER_RDMA_DEVICES. Where KVXFER_RDMA_WIRE says that they lie over the TAP
// devices of github.com/kvxfer/kvxfer/test/rdma/tapwire, the first is used alone: opening its TAP device gives it a carrier, and
// its packets to itself need no more.
func names(t testing.TB) []string {
	v := os.Getenv("KVXFER_RDMA_DEVICES")
	if v == "" {
		t.Skip("needs an RDMA device: name one, or two, in KVXFER_RDMA_DEVICES (rdma_rxe over any network interface is one)")
	}
	list := strings.Split(v, ",")
	if wire := os.Getenv("KVXFER_RDMA_WIRE"); wire != "" {
		list = list[:1]
		carrier(t, strings.Split(wire, ",")[0])
	}
	state := filepath.Join(classes, "infiniband", list[0], "ports/1")
	require.Eventually(t, func() bool { return line(state, "state") == "4: ACTIVE" }, patience, time.Millisecond, "port 1 of %s", list[0])
	return list
}

// carrier holds a TAP device open for the length of the test.
func carrier(t testing.TB, name string) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	r, err := unix.NewIfreq(name)
	require.NoError(t, err)
	r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	require.NoError(t, unix.IoctlIfreq(fd, unix.TUNSETIFF, r), name)
}

// soft reports whether a device is made of software: SoftRoCE, which has no device below it.
func soft(name string) bool {
	_, err := os.Stat(filepath.Join(classes, "infiniband", name, "device"))
	return err != nil
}
