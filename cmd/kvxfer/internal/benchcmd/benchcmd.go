package benchcmd

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
)

const help = `Usage:
  kvxfer bench tcp|shm [--way WAY] [--case LIST] [--op write|read] [--rounds N] [--seconds S] [--no-limit] [--out FILE] [--json]
  kvxfer bench host    [--busy N] [--way WAY] [--case LIST] [--op write|read] [--rounds N] [--seconds S] [--no-limit]
                       [--out FILE] [--json]
  kvxfer bench copy    [--case LIST] [--rounds N] [--seconds S] [--no-limit] [--out FILE] [--json]
  kvxfer bench verbs   [--device NAME[,NAME]] [--size LIST] [--case LIST] [--op write|read] [--rounds N] [--seconds S]
                       [--no-limit] [--out FILE] [--json]
  kvxfer bench many    [...], see kvxfer bench many --help

tcp and shm start two daemons and a client of each on this host, move lists of scattered blocks between them, and compare
every block that arrives. Beside each transfer, in the same stretch of time, a small C program moves the same list as fast
as it can by itself (limit: blocking writev and readv over loop-back TCP, or copies) and 64 MiB of contiguous memory.
host does so with one daemon, and both clients are its: the limit is copies by one thread, and by two, both in each round.
copy measures this host's memory alone: each way to copy the list, by C and by Go.

verbs needs an RDMA device. It measures two things: single operations between two providers inside this process, many in
flight, beside perftest's ib_write_bw, ib_read_bw and ib_write_lat on the same ports where these are installed (limit); then
lists through two daemons that may use verbs alone.

Transfers end with a table, or with one JSON array (verbs: an object). Progress goes to stderr. docs/performance.md explains the fields.

Flags:
  --case LIST   cases separated by commas (default: all):
                1x8B, 1x4KiB, 64x4KiB, 1024x4KiB, 1024x16KiB, 4096x16KiB, 1024x64KiB, 256x256KiB, 64x1MiB
                none: of verbs no lists
  --size LIST   of verbs: sizes of operations separated by commas (default: all): 4KiB, 16KiB, 64KiB, 256KiB, 1MiB, 8MiB
  --device LIST of verbs: the device of both sides, or one of each (default: all that the daemon would use)
  --op OP       write (push) or read (pull) alone
  --way WAY     of tcp, shm and host. transfers: each has a lease of its own; prepared: raw regions, whose list is prepared once and
                then run again and again; all: both (default of tcp and shm transfers, of host all)
  --busy N      of host: N processes of this run that compute all the time beside it, 0..1024 (default 0)
  --rounds N    at most N rounds of a case and operation, 1..10000 (default 50)
  --seconds S   at most about S seconds of a case and operation, but three rounds, 0.1..3600 (default 4)
  --no-limit    measure no limits; needs no C compiler, and of verbs no perftest
  --out FILE    also write the JSON array to FILE
  --json        JSON instead of a table

Needs cc (any C compiler) for tcp, shm, host and copy without --no-limit, and up to 1 GiB of memory.
Exit codes: 0 done; 1 failed, or bytes were wrong; 2 wrong usage.
`

// Run executes `kvxfer bench` with the arguments after "bench" and returns the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == workerName {
		return work(args[1:], waiting(os.Stdin), stdout, stderr)
	}
	if len(args) > 0 && args[0] == busyName {
		return compute(waiting(os.Stdin))
	}
	if len(args) > 0 && args[0] == "many" {
		return manyRun(args[1:], stdout, stderr)
	}
	c := &command.Command{Name: "bench", Help: help, Stdout: stdout, Stderr: stderr}
	r := &run{progress: stderr, seed: uint64(time.Now().UnixNano())}
	var caseList, sizeList, deviceList, op, wayName, out string
	var seconds float64
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.StringVar(&caseList, "case", "", "")
	fs.StringVar(&sizeList, "size", "", "")
	fs.StringVar(&deviceList, "device", "", "")
	fs.StringVar(&op, "op", "", "")
	fs.StringVar(&wayName, "way", "", "")
	fs.IntVar(&r.busy, "busy", 0, "")
	fs.IntVar(&r.rounds, "rounds", 50, "")
	fs.Float64Var(&seconds, "seconds", 4, "")
	fs.BoolVar(&r.noLimit, "no-limit", false, "")
	fs.StringVar(&out, "out", "", "")
	names, code, done := c.Parse(fs, args)
	if done {
		return code
	}
	var err error
	switch {
	case len(names) != 1 || !slices.Contains([]string{"copy", "tcp", "shm", "host", "verbs"}, names[0]):
		return c.Misused("say what to measure: copy, tcp, shm, host, verbs or many")
	case op != "" && op != "write" && op != "read":
		return c.Misused("--op %q, allowed write, read", op)
	case op != "" && names[0] == "copy":
		return c.Misused("--op is for tcp, shm, host and verbs")
	case wayName != "" && !slices.Contains([]string{"tcp", "shm", "host"}, names[0]):
		return c.Misused("--way is for tcp, shm and host")
	case r.busy != 0 && names[0] != "host":
		return c.Misused("--busy is for host")
	case r.busy < 0 || r.busy > busyMost:
		return c.Misused("--busy %d, allowed 0..%d", r.busy, busyMost)
	case names[0] != "verbs" && (sizeList != "" || deviceList != ""):
		return c.Misused("--size and --device are for verbs")
	case r.rounds < 1 || r.rounds > 10000:
		return c.Misused("--rounds %d, allowed 1..10000", r.rounds)
	case !(seconds >= 0.1 && seconds <= 3600):
		return c.Misused("--seconds %v, allowed 0.1..3600", seconds)
	}
	if caseList == "none" && names[0] == "verbs" {
		r.cases = nil
	} else if r.cases, err = chosen(caseList); err != nil {
		return c.Misused("--case: %v", err)
	}
	if wayName == "" {
		wayName = map[bool]string{false: transfers, true: "all"}[names[0] == "host"]
	}
	if r.ways, err = chosenWays(wayName); err != nil {
		return c.Misused("--way: %v", err)
	}
	if r.sizes, err = chosenSizes(sizeList); err != nil {
		return c.Misused("--size: %v", err)
	}
	if r.devices, err = pickDevices(deviceList); err != nil {
		return c.Misused("--device: %v", err)
	}
	r.bench, r.ops, r.limit = names[0], []string{"write", "read"}, time.Duration(seconds*float64(time.Second))
	if op != "" {
		r.ops = []string{op}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var report any // what --json prints; nil: nothing was finished
	var text func() string
	var records []Record
	if r.bench == "verbs" {
		var v VerbsReport
		v, err = r.verbs(ctx)
		if records = v.Lists; len(v.Messages) > 0 {
			report, text = &v, v.text
		}
	} else if records, err = r.all(ctx); len(records) > 0 {
		report, text = records, func() string { return table(records) }
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err == nil && out != "" {
		err = writeFile(out, report)
	}
	if n := disturbed(records); n > 0 {
		fmt.Fprintf(stderr, "bench %s: during %d of %d measurements others used more than %.0f%% of the processors (other_cpu): these say little\n",
			r.bench, n, len(records), 100*busyEnough)
	}
	if report != nil { // also what was finished in a run that failed later
		if c.JSON {
			code = c.PrintJSON(report)
		} else {
			_, werr := io.WriteString(stdout, text())
			err = errors.Join(err, werr)
		}
	}
	if err != nil {
		return c.Fail(err)
	}
	return code
}

// disturbed counts the records that were measured while others used the processors.
func disturbed(records []Record) (n int) {
	for _, r := range records {
		if r.OtherCPU > busyEnough {
			n++
		}
	}
	return n
}

func writeFile(path string, report any) error {
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// all runs everything and returns the records that were finished, also with an error.
func (r *run) all(ctx context.Context) (records []Record, err error) {
	// The kernel kills a child when the thread that started it ends: this one stays until all have ended.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r.dir, err = os.MkdirTemp("", "kvxfer-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(r.dir)) }()
	if !r.noLimit {
		if r.program, err = compile(ctx, r.dir); err != nil {
			return nil, err
		}
	}
	begun := time.Now()
	add := func(rec Record) {
		records = append(records, rec)
		against := ""
		if rec.Ratio != nil {
			against = fmt.Sprintf(", limit %s GB/s, ratio %s", number(rec.LimitGBps), number(rec.Ratio))
		}
		fmt.Fprintf(r.progress, "bench %s: %5.1f s: %s %s: %s, %s GB/s%s (%d samples)\n", r.bench, time.Since(begun).Seconds(),
			rec.Case, rec.what(), shown(rec.MedianS), number(&rec.GBps), against, rec.Samples)
	}
	if r.bench == "copy" {
		err = r.copies(ctx, add)
	} else {
		err = r.transfers(ctx, add)
	}
	return records, err
}
