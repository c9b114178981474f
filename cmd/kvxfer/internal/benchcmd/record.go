package benchcmd

import (
	"fmt"
	"math"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
)

// Record is one line of the report. Speeds are in GB/s, 1e9 bytes a second; what was not measured is null.
type Record struct {
	Bench         string   `json:"bench"` // copy, tcp, shm or verbs
	Case          string   `json:"case"`
	Op            string   `json:"op"` // write or read; of copy: which copy
	Blocks        int      `json:"blocks"`
	BlockBytes    int      `json:"block_bytes"`
	Samples       int      `json:"samples"`  // transfers that the median is of
	MedianS       float64  `json:"median_s"` // from the start of the call to the end of the transfer, as its caller sees it
	GBps          float64  `json:"gbps"`
	LimitGBps     *float64 `json:"limit_gbps"`      // the same list by the program of limit.c, the best way it has
	LimitHow      *string  `json:"limit_how"`       // that way
	Ratio         *float64 `json:"ratio"`           // gbps / limit_gbps
	ContigGBps    *float64 `json:"contiguous_gbps"` // 64 MiB of contiguous memory: 4 connections; by copy: the best way
	SubmitP50     *float64 `json:"submit_us_p50"`   // how long the starting call holds its caller
	SubmitP99     *float64 `json:"submit_us_p99"`
	CPUSecondsPGB *float64 `json:"cpu_s_per_gb"` // of both daemons and both clients
	RSSBytes      *uint64  `json:"rss_bytes"`    // of both daemons, without the clients' memory that they map
	OtherCPU      float64  `json:"other_cpu"`    // share of all processors that others than this run used meanwhile, 0 to 1
}

// samples are what one case and operation gave.
type samples struct {
	moved, submit []time.Duration
	limit, line   []time.Duration
	limitHow      string
	cpu           time.Duration
	rss           uint64
	others        float64
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
	if len(s.submit) > 0 {
		r.SubmitP50, r.SubmitP99 = rounded(quantile(s.submit, 0.5)*1e6, 4), rounded(quantile(s.submit, 0.99)*1e6, 4)
		r.CPUSecondsPGB = rounded(s.cpu.Seconds()/(float64(c.Bytes())*float64(len(s.moved))/1e9), 3)
		r.RSSBytes = &s.rss
	}
	return r
}

// table is the report for people.
func table(records []Record) string {
	t := command.NewTable("CASE", "OP", "MEDIAN", "GB/S", "LIMIT", "RATIO", "CONTIGUOUS", "SUBMIT P50", "P99", "CPU S/GB", "RSS", "OTHERS", "LIMIT BY")
	for _, r := range records {
		how, rss := "", ""
		if r.LimitHow != nil {
			how = *r.LimitHow
		}
		if r.RSSBytes != nil {
			rss = command.Bytes(*r.RSSBytes)
		}
		t.Row(r.Case, r.Op, shown(r.MedianS), number(&r.GBps), number(r.LimitGBps), number(r.Ratio), number(r.ContigGBps),
			micros(r.SubmitP50), micros(r.SubmitP99), number(r.CPUSecondsPGB), rss, fmt.Sprintf("%.0f%%", 100*r.OtherCPU), how)
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
