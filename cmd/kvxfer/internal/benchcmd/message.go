package benchcmd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
)

// MessageRecord is one line of what `bench verbs` measures below the daemons: operations of one contiguous range, by the provider
// itself and by perftest's tools. Speeds are in GB/s, 1e9 bytes a second; what was not measured is null.
type MessageRecord struct {
	Bench             string   `json:"bench"` // verbs
	Op                string   `json:"op"`    // write or read
	Bytes             int      `json:"bytes"` // of each operation
	Depth             int      `json:"depth"` // operations in flight, at most
	Samples           int      `json:"samples"`
	MessagesPerS      float64  `json:"messages_per_s"`
	GBps              float64  `json:"gbps"`
	LatencyP50        *float64 `json:"latency_us_p50"` // of one operation alone, from Post to its completion
	LatencyP99        *float64 `json:"latency_us_p99"`
	CPUSecondsPGB     float64  `json:"cpu_s_per_gb"`         // of this process, which is both ends
	MachineCPU        float64  `json:"machine_cpu_s_per_gb"` // of everybody, the kernel's work on packets included
	PerftestMsgsPerS  *float64 `json:"perftest_messages_per_s"`
	PerftestGBps      *float64 `json:"perftest_gbps"`
	PerftestHow       *string  `json:"perftest_how"`
	PerftestLatencyUs *float64 `json:"perftest_latency_us"` // of ib_write_lat: half of a round trip, seen by polling memory
	Ratio             *float64 `json:"ratio"`               // gbps / perftest_gbps
}

// messageSamples are what one size and operation gave.
type messageSamples struct {
	speeds       []float64 // bytes a second, of each round
	latency      []time.Duration
	cpu, machine time.Duration
	moved        float64   // bytes, of all rounds
	theirs       []float64 // bytes a second
	how          string
	theirLatency float64 // us; 0: not measured
}

func messageRecord(op string, size, depth int, s *messageSamples) MessageRecord {
	speed := middle(s.speeds)
	r := MessageRecord{Bench: "verbs", Op: op, Bytes: size, Depth: depth, Samples: len(s.speeds), MessagesPerS: *rounded(speed/float64(size), 4),
		GBps: *rounded(speed/1e9, 4), CPUSecondsPGB: *rounded(s.cpu.Seconds()/s.moved*1e9, 3), MachineCPU: *rounded(s.machine.Seconds()/s.moved*1e9, 3)}
	if len(s.latency) > 0 {
		r.LatencyP50, r.LatencyP99 = rounded(quantile(s.latency, 0.5)*1e6, 4), rounded(quantile(s.latency, 0.99)*1e6, 4)
	}
	if len(s.theirs) > 0 {
		best := middle(s.theirs)
		r.PerftestGBps, r.PerftestMsgsPerS, r.PerftestHow = rounded(best/1e9, 4), rounded(best/float64(size), 4), &s.how
		r.Ratio = rounded(speed/best, 3)
	}
	if s.theirLatency > 0 {
		r.PerftestLatencyUs = rounded(s.theirLatency, 4)
	}
	return r
}

// middle is the median by the nearest rank; there is a sample.
func middle(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return s[(len(s)-1)/2]
}

// VerbsReport is what `bench verbs --json` prints.
type VerbsReport struct {
	Near     PortRecord      `json:"near"`
	Far      PortRecord      `json:"far"`
	Messages []MessageRecord `json:"messages"`
	Lists    []Record        `json:"lists"`
}

// PortRecord is an RDMA port that was measured.
type PortRecord struct {
	Device string  `json:"device"`
	Port   int     `json:"port"`
	MTU    int     `json:"mtu"`  // bytes of payload in a packet
	Gbps   float64 `json:"gbps"` // of the link, in 1e9 bits a second, as the device says
}

func (r *VerbsReport) text() string {
	t := command.NewTable("BYTES", "OP", "DEPTH", "MSG/S", "GB/S", "PERFTEST", "RATIO", "LATENCY P50", "P99", "IB_WRITE_LAT", "CPU S/GB", "ALL CPU", "PERFTEST BY")
	for _, m := range r.Messages {
		how := ""
		if m.PerftestHow != nil {
			how = *m.PerftestHow
		}
		t.Row(sizeName(m.Bytes), m.Op, fmt.Sprint(m.Depth), number(&m.MessagesPerS), number(&m.GBps), number(m.PerftestGBps), number(m.Ratio), micros(m.LatencyP50), micros(m.LatencyP99),
			micros(m.PerftestLatencyUs), number(&m.CPUSecondsPGB), number(&m.MachineCPU), how)
	}
	out := fmt.Sprintf("%s:%d to %s:%d, MTU %d\n\n%s", r.Near.Device, r.Near.Port, r.Far.Device, r.Far.Port, min(r.Near.MTU, r.Far.MTU), t.String())
	if len(r.Lists) > 0 {
		out += "\n" + table(r.Lists)
	}
	return out
}

// messageSizes are what is measured, small first.
var messageSizes = []int{4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20}

func sizeName(bytes int) string { return strings.TrimPrefix(Case{1, bytes}.Name(), "1x") }

func sizeNames() string {
	names := make([]string, len(messageSizes))
	for i, s := range messageSizes {
		names[i] = sizeName(s)
	}
	return strings.Join(names, ", ")
}

// chosenSizes are the sizes that a list of names means, in the table's order; "" means all.
func chosenSizes(list string) ([]int, error) {
	if list == "" {
		return messageSizes, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		wanted[strings.TrimSpace(name)] = true
	}
	var out []int
	for _, s := range messageSizes {
		if wanted[sizeName(s)] {
			out = append(out, s)
			delete(wanted, sizeName(s))
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("no size %q, allowed %s", name, sizeNames())
	}
	return out, nil
}
