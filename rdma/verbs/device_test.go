package verbs

import (
	"testing"

	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
	"github.com/kvxfer/kvxfer/test/rdma/tapwire"
)

// TestConformanceOnDevices runs the contract's suite over a real RDMA stack, once with memory windows, where the device has them, and
// once without. In a virtual machine the packets between its two devices can be held; on a host's own hardware they cannot.
func TestConformanceOnDevices(t *testing.T) {
	rig := tapwire.Get(t)
	for name, opt := range map[string]Options{"Windows": {}, "NoWindows": {NoWindows: true}} {
		t.Run(name, func(t *testing.T) { fabrictest.Run(t, onDevices(rig, opt)) })
	}
}

func onDevices(rig tapwire.Rig, opt Options) fabrictest.Harness {
	h := fabrictest.Harness{Bound: suiteBound, Slow: rig.Wired()}
	if h.Slow {
		opt.MaxOpBytes, opt.MaxRanges, opt.MaxInFlightLen = 4<<20, 4096, 2<<20
	}
	if !rig.Wired() {
		h.NoStall = "packets between hardware devices cannot be held"
	}
	h.New = func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
		node := func(device string) *suiteNode {
			opt := opt
			opt.Clock, opt.Devices = clock, []string{device}
			return newSuiteNode(t, nil, opt)
		}
		a, b := node(rig.Devices[0]), node(rig.Devices[len(rig.Devices)-1])
		if !rig.Wired() {
			pair := suitePair(a, b, nil)
			pair.Stall = nil
			return pair
		}
		w := rig.Wire(t)
		return suitePair(a, b, func(hold bool) {
			if hold {
				w.Hold(nil)
			} else {
				w.Release()
			}
		})
	}
	return h
}
