package sysfs

import (
	"io/fs"
	"path"
	"strconv"
)

// ECN is for which priorities an interface's card reacts to congestion marks on RoCE. Only the vendor's own driver of some cards
// shows it in /sys; the kernel's does not.
type ECN struct {
	Notify []int // priorities at which a marked packet is answered with a CNP (notification point)
	React  []int // priorities that slow down on a CNP (reaction point)
}

// ReadECN reads it; false where it cannot be read here. Priority flow control has no file in /sys at all: `dcb pfc show dev`.
func ReadECN(root fs.FS, netdev string) (ECN, bool) {
	notify, known := priorities(root, path.Join(netdir, netdev, "ecn/roce_np/enable"))
	react, known2 := priorities(root, path.Join(netdir, netdev, "ecn/roce_rp/enable"))
	return ECN{notify, react}, known && known2
}

func priorities(root fs.FS, dir string) (on []int, known bool) {
	for _, i := range indices(root, dir) {
		switch text(root, path.Join(dir, strconv.Itoa(i))) {
		case "1":
			on, known = append(on, i), true
		case "0":
			known = true
		}
	}
	return on, known
}
