package sysfs

import (
	"io/fs"
	"path"
	"slices"
	"strconv"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Counter is one of the device's counters.
type Counter struct {
	Name  string
	Value uint64
}

// Counters reads the counters of a port, those of the device's own driver (hw_counters) behind InfiniBand's (counters), each in
// the order of names. Some drivers keep hw_counters for the device as a whole; those are told where the port has none of its
// own. A device that is shared with another network namespace shows the kernel's counters there only.
func Counters(root fs.FS, dev string, n int) []Counter {
	dir := path.Join(class, dev, "ports", strconv.Itoa(n))
	out := counters(root, path.Join(dir, "counters"))
	own := counters(root, path.Join(dir, "hw_counters"))
	if own == nil {
		own = counters(root, path.Join(class, dev, "hw_counters"))
	}
	return append(out, own...)
}

func counters(root fs.FS, dir string) (out []Counter) {
	entries, err := fs.ReadDir(root, dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if v, err := strconv.ParseUint(text(root, path.Join(dir, e.Name())), 10, 64); err == nil && e.Name() != "lifespan" { // a setting among them
			out = append(out, Counter{e.Name(), v})
		}
	}
	slices.SortFunc(out, func(a, b Counter) int { return nic.CompareNames(a.Name, b.Name) })
	return out
}
