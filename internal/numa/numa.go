package numa

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma"
)

const (
	onlineFile = "/sys/devices/system/node/online"
	samples    = 32
	maxNodes   = 1 << 16 // more is no list of nodes; the kernel's own limit is 1024
)

// Nodes is how many NUMA nodes the host has; 0: unknown. It is read once.
var Nodes = sync.OnceValue(func() int {
	raw, err := os.ReadFile(onlineFile)
	if err != nil {
		return 0
	}
	return count(string(raw))
})

// count reads a list like "0-1,4"; 0 for anything else.
func count(list string) (n int) {
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err := strconv.ParseUint(lo, 10, 16)
		last, err2 := strconv.ParseUint(hi, 10, 16)
		if err != nil || err2 != nil || last < first {
			return 0
		}
		if n += int(last-first) + 1; n > maxNodes {
			return 0
		}
	}
	return n
}

// Of is the node where most of the memory lies, nil where that is unknown or the host has one only.
func Of(m rdma.Memory) *int {
	if m.Kind != rdma.MemoryHost || m.Base == nil || Nodes() < 2 {
		return nil
	}
	return most(m.Len, func(off uint64) (int, bool) { return nodeAt(unsafe.Add(m.Base, off)) })
}

// most asks at some offsets below length and returns the answer given most often, the lowest of several.
func most(length uint64, ask func(off uint64) (int, bool)) *int {
	votes := map[int]int{}
	step := max(length/samples, 1)
	for i, off := 0, uint64(0); i < samples && off < length; i, off = i+1, off+step {
		if node, ok := ask(off); ok {
			votes[node]++
		}
	}
	best := -1
	for node, n := range votes {
		if best < 0 || n > votes[best] || n == votes[best] && node < best {
			best = node
		}
	}
	if best < 0 {
		return nil
	}
	return &best
}

// nodeAt is the node of the page at an address.
func nodeAt(p unsafe.Pointer) (int, bool) {
	const flagNode, flagAddr = 1, 2 // MPOL_F_NODE, MPOL_F_ADDR
	var node int32
	_, _, e := unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&node)), 0, 0, uintptr(p), flagNode|flagAddr, 0)
	return int(node), e == 0 && node >= 0
}
