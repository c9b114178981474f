package benchcmd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/node"
	"github.com/kvxfer/kvxfer/rdma"
)

const (
	depth       = 64       // operations in flight
	pairMemory  = 16 << 20 // on each side; the largest message fits twice
	streamTime  = 500 * time.Millisecond
	latencyTime = 100 * time.Millisecond
	fewest      = 16 // operations of a stream, and of a latency
	mostOps     = 20000
	mostPings   = 2000
	manyPairs   = 4 // queue pairs that perftest tries besides one: what the provider has by default
)

// messages measures operations of the provider itself beside perftest's tools, in alternating rounds.
func (r *run) messages(ctx context.Context, report *VerbsReport) (err error) {
	var side [2]config.RDMA
	if n := len(r.devices); n > 0 {
		side[0].Devices, side[1].Devices = r.devices[:1], r.devices[n-1:]
	}
	p, err := node.OpenPair(ctx, "verbs", &side[0], &side[1], pairMemory)
	if err != nil {
		return err
	}
	defer p.Close()
	a, b, _ := p.Ports()
	report.Near, report.Far = portRecord(a), portRecord(b)
	tools := &perftest{dir: r.dir, near: a, far: b}
	if r.noLimit {
		tools = nil
	} else if t := tools.missing(r.ops); t != "" {
		fmt.Fprintf(r.progress, "bench verbs: %s is not in PATH: perftest's columns are left out\n", t)
		tools = nil
	}
	begun := time.Now()
	for _, size := range r.sizes {
		for _, op := range r.ops {
			s, err := r.messagesOf(ctx, p, tools, op, size)
			if err != nil {
				return fmt.Errorf("%s %s: %w", sizeName(size), op, err)
			}
			m := messageRecord(op, size, depth, s)
			report.Messages = append(report.Messages, m)
			against := ""
			if m.Ratio != nil {
				against = fmt.Sprintf(", perftest %s GB/s, ratio %s", number(m.PerftestGBps), number(m.Ratio))
			}
			fmt.Fprintf(r.progress, "bench verbs: %5.1f s: %s %s: %s messages/s, %s GB/s%s (%d samples)\n", time.Since(begun).Seconds(), sizeName(size), op,
				number(&m.MessagesPerS), number(&m.GBps), against, m.Samples)
		}
	}
	return nil
}

func portRecord(p node.Port) PortRecord {
	return PortRecord{Device: p.Device, Port: p.Port, MTU: p.MTU, Gbps: p.Gbps}
}

// messagesOf measures one size and operation.
func (r *run) messagesOf(ctx context.Context, p *node.Pair, tools *perftest, op string, size int) (*messageSamples, error) {
	kind := rdma.OpWrite
	if op == "read" {
		kind = rdma.OpRead
	}
	if _, err := p.Stream(ctx, kind, uint64(size), fewest, depth); err != nil { // queue pairs are used for the first time
		return nil, err
	}
	warm, err := p.Stream(ctx, kind, uint64(size), fewest, depth)
	if err != nil {
		return nil, err
	}
	count := within(streamTime, warm, fewest, mostOps)
	s := &messageSamples{}
	pairs := 1
	if tools != nil {
		if pairs, err = tools.best(ctx, op, size, count); err != nil {
			return nil, err
		}
		s.how = fmt.Sprintf("%s -q %d", bandwidthTool(op), pairs)
	}
	begun := time.Now()
	for i := 0; i < r.rounds && (i < leastRounds || time.Since(begun) < r.limit); i++ {
		before, err := look(nil, nil)
		if err != nil {
			return nil, err
		}
		took, err := p.Stream(ctx, kind, uint64(size), count, depth)
		if err != nil {
			return nil, err
		}
		after, err := look(nil, nil)
		if err != nil {
			return nil, err
		}
		moved := float64(size) * float64(count)
		s.speeds = append(s.speeds, moved/took.Seconds())
		s.moved += moved
		s.cpu += after.ours - before.ours
		s.machine += after.all - before.all
		if tools == nil {
			continue
		}
		speed, err := tools.bandwidth(ctx, op, size, count, pairs)
		if err != nil {
			return nil, err
		}
		s.theirs = append(s.theirs, speed)
	}
	return s, r.latencies(ctx, p, tools, kind, size, s)
}

// latencies measures operations that are alone.
func (r *run) latencies(ctx context.Context, p *node.Pair, tools *perftest, kind rdma.OpKind, size int, s *messageSamples) error {
	few, err := p.Latency(ctx, kind, uint64(size), fewest)
	if err != nil {
		return err
	}
	count := within(latencyTime, time.Duration(median(few)*fewest*float64(time.Second)), fewest, mostPings)
	if s.latency, err = p.Latency(ctx, kind, uint64(size), count); err != nil || tools == nil || kind != rdma.OpWrite {
		return err
	}
	s.theirLatency, err = tools.latency(ctx, size, count)
	return err
}

// within is how many operations take about a time, where fewest of them took so long.
func within(want, took time.Duration, least, most int) int {
	if took <= 0 {
		return most
	}
	return int(min(max(math.Ceil(float64(fewest)*want.Seconds()/took.Seconds()), float64(least)), float64(most)))
}

// best tries one queue pair and several, and gives the number with which the tool is faster: the rival is not to be held back by a
// default.
func (p *perftest) best(ctx context.Context, op string, size, count int) (pairs int, err error) {
	fastest := 0.0
	for _, q := range []int{1, manyPairs} {
		speed, err := p.bandwidth(ctx, op, size, count, q)
		if err != nil {
			return 0, err
		}
		if speed > fastest {
			pairs, fastest = q, speed
		}
	}
	return pairs, nil
}

// verbs runs both parts and returns what was finished, also with an error.
func (r *run) verbs(ctx context.Context) (report VerbsReport, err error) {
	runtime.LockOSThread() // as in all
	defer runtime.UnlockOSThread()
	report.Messages, report.Lists = []MessageRecord{}, []Record{}
	if r.dir, err = os.MkdirTemp("", "kvxfer-bench-"); err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if err = r.messages(ctx, &report); err != nil || len(r.cases) == 0 {
		return report, err
	}
	r.noLimit = true // of lists: the program that measures limits knows no RDMA
	for i := range r.extra {
		if n := len(r.devices); n > 0 {
			r.extra[i] = []string{"--rdma-devices", r.devices[min(i, n-1)]}
		}
	}
	begun := time.Now()
	err = r.transfers(ctx, func(rec Record) {
		report.Lists = append(report.Lists, rec)
		fmt.Fprintf(r.progress, "bench verbs: %5.1f s: %s %s: %s, %s GB/s (%d samples)\n", time.Since(begun).Seconds(), rec.Case, rec.Op, shown(rec.MedianS), number(&rec.GBps), rec.Samples)
	})
	return report, err
}

// pickDevices reads --device: one for both sides, or one for each.
func pickDevices(list string) ([]string, error) {
	if list == "" {
		return nil, nil
	}
	devices := strings.Split(list, ",")
	for i := range devices {
		devices[i] = strings.TrimSpace(devices[i])
	}
	if len(devices) > 2 || slices.Contains(devices, "") {
		return nil, fmt.Errorf("%.80q, allowed one device, or two separated by a comma", list)
	}
	return devices, nil
}
