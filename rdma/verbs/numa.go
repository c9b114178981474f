package verbs

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/internal/numa"
)

// nodeCPUs lists a NUMA node's CPUs; nil where the host has one node, or it is unknown.
func nodeCPUs(node int) []int {
	if node < 0 || numa.Nodes() < 2 {
		return nil
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil
	}
	return parseCPUs(string(b))
}

// maxCPU bounds what a list may name.
const maxCPU = 1 << 13

// parseCPUs reads a list such as "0-3,8,10-11"; nil for what is none.
func parseCPUs(s string) (out []int) {
	for f := range strings.SplitSeq(strings.TrimSpace(s), ",") {
		from, to, isRange := strings.Cut(f, "-")
		a, err := strconv.Atoi(from)
		b := a
		if err == nil && isRange {
			b, err = strconv.Atoi(to)
		}
		if err != nil || a < 0 || b < a || b >= maxCPU {
			return nil
		}
		for ; a <= b; a++ {
			out = append(out, a)
		}
	}
	return out
}
