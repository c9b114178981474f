package simfabric

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Options shape a fabric. The zero value of a field means its default.
type Options struct {
	Clock  Clock  // moves the packets; default RealClock
	Faults Faults // default: none, and no delay
	Chunk  uint64 // bytes in a packet, 1 to 1 MiB; default 16 KiB

	MaxRanges      int    // default 8192
	MaxOpBytes     uint64 // default 64 MiB
	MaxInFlight    int    // default 256
	MaxInFlightLen uint64 // default 8 MiB

	// Trace is called for each thing that happens, in order, under the fabric's lock: it must not call back.
	Trace func(Step)
}

// Faults say what the fabric does to packets. The probabilities are 0 to 1 and are drawn for every packet.
type Faults struct {
	Delay  time.Duration // every packet's time in the fabric
	Jitter time.Duration // up to so much more, at random, once before it is sent and once in the fabric: packets overtake each other

	Loss      float64       // of being lost
	Retry     time.Duration // a lost packet is sent again after it; default 4 times Delay+Jitter, at least 1 µs
	MaxLosses int           // losses of one packet that end its session; 0: it is sent again for ever

	Duplicate float64       // of being delivered twice, soon after each other. Also of an arrival being reported twice
	Late      float64       // of a copy that comes late
	Hold      float64       // of coming late itself
	LateBy    time.Duration // how late: from a tenth of it up to all of it; required with Late or Hold
}

// Step is one entry of a fabric's history. The same seed and the same calls in the same order give the same steps.
type Step struct {
	At      rdma.Instant
	What    string // "post", "send", "lose", "copy", "late", "hold", "place", "refuse", "read", "answer", "result", "complete", "down", ...
	Node    string // where it happened
	Session uint64 // the fabric's own number
	Op      uint64
	Packet  int
}

func (o *Options) ensureDefaults() {
	if o.Clock == nil {
		o.Clock = RealClock()
	}
	def(&o.Chunk, 16<<10)
	def(&o.MaxRanges, 8192)
	def(&o.MaxOpBytes, 64<<20)
	def(&o.MaxInFlight, 256)
	def(&o.MaxInFlightLen, 8<<20)
	def(&o.Faults.Retry, max(4*(o.Faults.Delay+o.Faults.Jitter), time.Microsecond))
}

func def[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func (o *Options) validate() error {
	for _, f := range [...]struct {
		name      string
		v         int64
		low, high int64
	}{
		{"Chunk", int64(min(o.Chunk, 1<<62)), 1, 1 << 20},
		{"MaxRanges", int64(o.MaxRanges), 1, 1 << 24},
		{"MaxOpBytes", int64(min(o.MaxOpBytes, 1<<62)), 1, 1 << 40},
		{"MaxInFlight", int64(o.MaxInFlight), 1, 1 << 20},
		{"MaxInFlightLen", int64(min(o.MaxInFlightLen, 1<<62)), 1, 1 << 40},
	} {
		if f.v < f.low || f.v > f.high {
			return fault.Invalid("sim fabric", f.name, "%d, want %d to %d", f.v, f.low, f.high)
		}
	}
	return o.Faults.validate()
}

func (f *Faults) validate() error {
	for _, x := range [...]struct {
		name string
		v    float64
	}{{"Loss", f.Loss}, {"Duplicate", f.Duplicate}, {"Late", f.Late}, {"Hold", f.Hold}} {
		if !(x.v >= 0 && x.v <= 1) {
			return fault.Invalid("sim fabric", "Faults."+x.name, "%g, want 0 to 1", x.v)
		}
	}
	if f.Loss == 1 && f.MaxLosses == 0 {
		return fault.Invalid("sim fabric", "Faults.MaxLosses", "0 with a Loss of 1: nothing would ever end")
	}
	for _, x := range [...]struct {
		name string
		v    time.Duration
	}{{"Delay", f.Delay}, {"Jitter", f.Jitter}, {"Retry", f.Retry}, {"LateBy", f.LateBy}} {
		if x.v < 0 || x.v > 24*time.Hour {
			return fault.Invalid("sim fabric", "Faults."+x.name, "%v, want 0 to 24h", x.v)
		}
	}
	if f.LateBy == 0 && (f.Late > 0 || f.Hold > 0) {
		return fault.Invalid("sim fabric", "Faults.LateBy", "0 with Late or Hold, want more")
	}
	return nil
}
