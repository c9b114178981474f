package benchcmd

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
)

// Record is one line of the report. Speeds are in GB/s, 1e9 bytes a second; what was not measured is null.
type Record struct {
	Bench         string   `json:"bench"` // copy, tcp, shm, host or verbs
	Case          string   `json:"case"`
	Op            string   `json:"op"`  // write or read; of copy: which copy
	Way           *string  `json:"way"` // transfers or prepared
	Blocks        int      `json:"blocks"`
	BlockBytes    int      `json:"block_bytes"`
	Samples       int      `json:"samples"`  // transfers, or runs of a prepared one, that the median is of
	MedianS       float64  `json:"median_s"` // from the start of the call to the end of the transfer, as its caller sees it
	GBps          float64  `json:"gbps"`
	LimitGBps     *float64 `json:"limit_gbps"`      // the same list by the program of limit.c, the best way it has
	LimitHow      *string  `json:"limit_how"`       // that way
	Ratio         *float64 `json:"ratio"`           // gbps / limit_gbps
	Limit1GBps    *float64 `json:"limit1_gbps"`     // of host: by one thread alone, its best way
	Ratio1        *float64 `json:"ratio1"`          // gbps / limit1_gbps
	Limit2GBps    *float64 `json:"limit2_gbps"`     // of host: by two threads, their best way
	Ratio2        *float64 `json:"ratio2"`          // gbps / limit2_gbps
	ContigGBps    *float64 `json:"contiguous_gbps"` // 64 MiB of contiguous memory: 4 connections; by copy: the best way
	SubmitP50     *float64 `json:"submit_us_p50"`   // how long the starting call holds its caller
	SubmitP99     *float64 `json:"submit_us_p99"`
	CPUSecondsPGB *float64 `json:"cpu_s_per_gb"` // of the daemons and both clients
	RSSBytes      *uint64  `json:"rss_bytes"`    // of the daemons, without the clients' memory that they map
	OtherCPU      float64  `json:"other_cpu"`    // share of all processors that others than this run used meanwhile, 0 to 1
	Busy          int      `json:"busy"`         // of host: processes of this run that computed beside it
}

// samples are what one case and operation gave.
type samples struct {
	moved, submit []time.Duration
	limit, line   []time.Duration
	limitHow      string
	threads       [2][]time.Duration // of host: the limit by one thread, by two
	cpu           time.Duration
	rss           uint64
	others        float64
}

// against takes what the rivals did: the faster one is the limit.
func (s *samples) against(rivals []*rival, threads bool) {
	for i, v := range rivals {
		if s.limit == nil || median(v.took) < median(s.limit) {
			s.limit, s.limitHow = v.took, v.way.name
		}
		if threads {
			s.threads[i] = v.took
		}
	}
}

// lineBytes is how much the contiguous stream of limit.c moves in a round.
const lineBytes = 64 << 20

func record(bench string, c Case, op string, s *samples) Record {
	m := median(s.moved)
	r := Record{Bench: bench, Case: c.Name(), Op: op, Blocks: c.Blocks, BlockBytes: c.BlockBytes, Samples: len(s.moved),
		MedianS: *rounded(m, 4), GBps: *rounded(float64(c.Bytes())/m/1e9, 4), LimitGBps: rate(c.Bytes(), s.limit), ContigGBps: rate(lineBytes, s.line), OtherCPU: *rounded(s.others, 2)}
	if r.LimitGBps != nil {
		r.LimitHow = &s.limitHow
		r.Ratio = rounded(median(s.limit)/m, 3)
	}
	for i, f := range [2][2]**float64{{&r.Limit1GBps, &r.Ratio1}, {&r.Limit2GBps, &r.Ratio2}} {
		if took := s.threads[i]; len(took) > 0 {
			*f[0], *f[1] = rate(c.Bytes(), took), rounded(median(took)/m, 3)
		}
	}
	if len(s.submit) > 0 {
		r.SubmitP50, r.SubmitP99 = rounded(quantile(s.submit, 0.5)*1e6, 4), rounded(quantile(s.submit, 0.99)*1e6, 4)
	}
	if s.rss > 0 {
		r.CPUSecondsPGB = rounded(s.cpu.Seconds()/(float64(c.Bytes())*float64(len(s.moved))/1e9), 3)
		r.RSSBytes = &s.rss
	}
	return r
}

// what is the operation as people are told of it.
func (r *Record) what() string {
	if r.Way != nil && *r.Way == prepared {
		return r.Op + " prepared"
	}
	return r.Op
}

// table is the report for people.
func table(records []Record) string {
	host := len(records) > 0 && records[0].Bench == "host"
	limits := []string{"LIMIT", "RATIO"}
	if host {
		limits = []string{"1 THREAD", "RATIO", "2 THREADS", "RATIO"}
	}
	t := command.NewTable(slices.Concat([]string{"CASE", "OP", "MEDIAN", "GB/S"}, limits, []string{"CONTIGUOUS", "SUBMIT P50", "P99", "CPU S/GB", "RSS", "OTHERS", "LIMIT BY"})...)
	for _, r := range records {
		how, rss := "", ""
		if r.LimitHow != nil {
			how = *r.LimitHow
		}
		if r.RSSBytes != nil {
			rss = command.Bytes(*r.RSSBytes)
		}
		limits := []any{number(r.LimitGBps), number(r.Ratio)}
		if host {
			limits = []any{number(r.Limit1GBps), number(r.Ratio1), number(r.Limit2GBps), number(r.Ratio2)}
		}
		t.Row(slices.Concat([]any{r.Case, r.what(), shown(r.MedianS), number(&r.GBps)}, limits, []any{number(r.ContigGBps),
			micros(r.SubmitP50), micros(r.SubmitP99), number(r.CPUSecondsPGB), rss, fmt.Sprintf("%.0f%%", 100*r.OtherCPU), how})...)
	}
	return t.String()
}

func number(v *float64) string {
	switch {
	case v == nil:
		return ""
	case math.Abs(*v) >= 100:
		return fmt.Sprintf("%.0f", *v)
	case math.Abs(*v) >= 10:
		return fmt.Sprintf("%.1f", *v)
	case math.Abs(*v) >= 0.1:
		return fmt.Sprintf("%.2f", *v)
	}
	return fmt.Sprintf("%.2g", *v)
}

func micros(v *float64) string {
	if v == nil {
		return ""
	}
	return shown(*v / 1e6)
}

// shown is a time for people, from seconds, with three digits.
func shown(seconds float64) string {
	switch {
	case seconds >= 1:
		return fmt.Sprintf("%.3g s", seconds)
	case seconds >= 1e-3:
		return fmt.Sprintf("%.3g ms", *rounded(seconds*1e3, 3))
	case seconds >= 1e-6:
		return fmt.Sprintf("%.3g us", *rounded(seconds*1e6, 3))
	}
	return fmt.Sprintf("%.3g ns", *rounded(seconds*1e9, 3))
}
