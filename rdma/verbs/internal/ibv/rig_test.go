//go:build cgo && linux

package ibv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kvxfer/kvxfer/test/rdma/tapwire"
)

// names are the devices that tests may use.
func names(t testing.TB) []string { return tapwire.Get(t).Devices }

// soft reports whether a device is made of software: SoftRoCE, which has no device below it.
func soft(name string) bool {
	_, err := os.Stat(filepath.Join(classes, "infiniband", name, "device"))
	return err != nil
}
