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
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/node"
)

const manyHelp = `Usage:
  kvxfer bench many [--provider tcp|shm] [--part LIST] [--blocks LIST] [--in-flight LIST] [--clients LIST] [--peers LIST]
                    [--bulk MIB] [--seconds S] [--out FILE] [--json]

Two daemons on this host, and what comes in large numbers: blocks of a transfer, transfers in flight, clients of a daemon, peers of
a daemon, and small transfers behind a large one. Clients and peers are objects of this process; a peer speaks the daemons' protocol
over tcp and pushes to leases of the first daemon. Ends with a table, or with one JSON array. docs/performance.md explains the
fields.

Flags:
  --provider P      what the two daemons may use, tcp or shm (default tcp)
  --part LIST       which parts: blocks, queued, in-flight, clients, peers, small (default: all)
  --blocks LIST     blocks of 1 KiB in one transfer, each 1..1000000 (default 1000,10000,100000)
  --in-flight LIST  transfers of 16 x 4 KiB in flight, each 1..4096 (default 1,8,64,1000)
  --clients LIST    clients of each daemon, 64 transfers of 16 x 4 KiB in flight in all, each 1..128 (default 1,8,64)
  --peers LIST      peers linked, 8 of them pushing 16 x 4 KiB at a time, each 1..512 (default 1,16,256)
  --bulk MIB        size of the large transfer that small ones of 1 x 4 KiB come behind, 8..4096 (default 1024)
  --seconds S       about so long a point, 0.1..3600 (default 3)
  --out FILE        also write the JSON array to FILE
  --json            JSON instead of a table

Exit codes: 0 done; 1 failed; 2 wrong usage.
`

// manyParts are what is measured, in order.
var manyParts = []string{"blocks", "queued", "in-flight", "clients", "peers", "small"}

// ManyRecord is one point. What was not measured is null.
type ManyRecord struct {
	Part      string   `json:"part"`
	N         int      `json:"n"`       // what the part counts
	How       string   `json:"how"`     // of small: alone, behind-other or behind-own
	Samples   int      `json:"samples"` // transfers that the figures are of
	GBps      *float64 `json:"gbps"`
	PerSecond *float64 `json:"transfers_per_s"`
	P50       *float64 `json:"us_p50"` // of a transfer, from the call to the end
	P99       *float64 `json:"us_p99"`
	NsBlock   *float64 `json:"ns_per_block"`
	OfBest    *float64 `json:"of_best"`   // speed by that of the part's fastest point
	RSSEach   *float64 `json:"rss_bytes"` // resident memory for each more: of queued, both daemons' for a block; of peers, a daemon's for an idle peer
	OtherCPU  float64  `json:"other_cpu"`
}

// many is one invocation.
type many struct {
	*run
	provider string
	parts    map[string]bool
	counts   map[string][]int // by part
	bulk     int              // MiB
	daemons  [2]*daemon
	info     node.Info // of the first daemon
	records  []ManyRecord
	made     int // caches, for their names
}

// manyRun executes `kvxfer bench many`.
func manyRun(args []string, stdout, stderr io.Writer) int {
	c := &command.Command{Name: "bench many", Help: manyHelp, Stdout: stdout, Stderr: stderr}
	m := &many{run: &run{progress: stderr}, parts: map[string]bool{}, counts: map[string][]int{}}
	var out, parts string
	var seconds float64
	fs := flag.NewFlagSet("bench many", flag.ContinueOnError)
	fs.StringVar(&m.provider, "provider", "tcp", "")
	fs.StringVar(&parts, "part", strings.Join(manyParts, ","), "")
	lists := map[string]*string{"blocks": fs.String("blocks", "1000,10000,100000", ""), "in-flight": fs.String("in-flight", "1,8,64,1000", ""),
		"clients": fs.String("clients", "1,8,64", ""), "peers": fs.String("peers", "1,16,256", "")}
	fs.IntVar(&m.bulk, "bulk", 1024, "")
	fs.Float64Var(&seconds, "seconds", 3, "")
	fs.StringVar(&out, "out", "", "")
	names, code, done := c.Parse(fs, args)
	if done {
		return code
	}
	var err error
	for name, most := range map[string]int{"blocks": 1_000_000, "in-flight": 4096, "clients": 128, "peers": 512} {
		if m.counts[name], err = numbers(*lists[name], most); err != nil {
			return c.Misused("--%s: %v", name, err)
		}
	}
	for p := range strings.SplitSeq(parts, ",") {
		m.parts[p] = true
	}
	known := 0
	for _, p := range manyParts {
		if m.parts[p] {
			known++
		}
	}
	switch {
	case len(names) > 0:
		return c.Misused("%q: nothing is taken but flags", names[0])
	case known != len(m.parts):
		return c.Misused("--part %q, allowed %s", parts, strings.Join(manyParts, ", "))
	case m.provider != "tcp" && m.provider != "shm":
		return c.Misused("--provider %q, allowed tcp, shm", m.provider)
	case m.bulk < 8 || m.bulk > 4096:
		return c.Misused("--bulk %d, allowed 8..4096", m.bulk)
	case !(seconds >= 0.1 && seconds <= 3600):
		return c.Misused("--seconds %v, allowed 0.1..3600", seconds)
	}
	m.limit = time.Duration(seconds * float64(time.Second))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err = m.all(ctx)
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	if err == nil && out != "" {
		err = writeFile(out, m.records)
	}
	if len(m.records) > 0 {
		if c.JSON {
			code = c.PrintJSON(m.records)
		} else {
			_, werr := io.WriteString(stdout, manyTable(m.records))
			err = errors.Join(err, werr)
		}
	}
	if err != nil {
		return c.Fail(err)
	}
	return code
}

// numbers reads a list of counts.
func numbers(list string, most int) (out []int, err error) {
	for s := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(s))
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("%q, allowed 1..%d separated by commas", s, most)
		}
		out = append(out, n)
	}
	return out, nil
}

// all runs the parts.
func (m *many) all(ctx context.Context) (err error) {
	runtime.LockOSThread() // the kernel kills a child when the thread that started it ends
	defer runtime.UnlockOSThread()
	if m.dir, err = os.MkdirTemp("", "kvxfer-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(m.dir)) }()
	exe, err := os.Executable()
	if err != nil {
		return err
	}
	for i, name := range []string{"local", "remote"} {
		args := []string{"--providers", m.provider + ",tcp", "--nats-listen", "127.0.0.1:0"} // peers come over tcp
		if m.provider == "tcp" {
			args[1] = "tcp"
		}
		if i == 1 {
			args = append(args[:2], "--nats", m.daemons[0].nats)
		}
		if m.daemons[i], err = startDaemon(ctx, exe, m.dir, name, args...); err != nil {
			return err
		}
		defer func() {
			if end := m.daemons[i].end(syscall.SIGTERM); err == nil && ctx.Err() == nil {
				err = end
			}
		}()
	}
	b, err := os.ReadFile(filepath.Join(m.dir, "local", "node.json"))
	if err == nil {
		err = json.Unmarshal(b, &m.info)
	}
	if err != nil {
		return err
	}
	do := map[string]func(context.Context) error{"blocks": m.blocks, "queued": m.queued, "in-flight": m.inFlight, "clients": m.clients, "peers": m.peers, "small": m.small}
	for _, part := range manyParts {
		if !m.parts[part] {
			continue
		}
		if err := do[part](ctx); err != nil {
			return fmt.Errorf("%s: %w", part, err)
		}
	}
	return nil
}

// look takes both daemons in.
func (m *many) look() (instant, error) {
	i, err := look(nil, nil)
	for _, d := range m.daemons {
		if err == nil {
			var t time.Duration
			t, err = d.cpu()
			i.ours += t
		}
	}
	return i, err
}

// rss is what both daemons hold besides their clients' memory.
func (m *many) rss() (uint64, error) {
	a, err := m.daemons[0].rss()
	if err != nil {
		return 0, err
	}
	b, err := m.daemons[1].rss()
	return a + b, err
}

func (m *many) add(r ManyRecord) {
	m.records = append(m.records, r)
	fmt.Fprintf(m.progress, "bench many: %s %d %s: %s GB/s, %s transfers/s, p50 %s, p99 %s (%d samples)\n", r.Part, r.N, r.How, number(r.GBps),
		number(r.PerSecond), micros(r.P50), micros(r.P99), r.Samples)
}

// best fills in how the points of a part compare.
func (m *many) best(part string) {
	var most float64
	for _, r := range m.records {
		if r.Part == part {
			most = max(most, *r.GBps)
		}
	}
	for i := range m.records {
		if r := &m.records[i]; r.Part == part {
			r.OfBest = rounded(*r.GBps/most, 3)
		}
	}
}

func manyTable(records []ManyRecord) string {
	t := command.NewTable("PART", "N", "HOW", "GB/S", "OF BEST", "TRANSFERS/S", "P50", "P99", "NS/BLOCK", "RSS EACH", "OTHERS")
	for _, r := range records {
		rss := ""
		if r.RSSEach != nil {
			rss = command.Bytes(uint64(*r.RSSEach))
		}
		t.Row(r.Part, strconv.Itoa(r.N), r.How, number(r.GBps), number(r.OfBest), number(r.PerSecond), micros(r.P50), micros(r.P99),
			number(r.NsBlock), rss, fmt.Sprintf("%.0f%%", 100*r.OtherCPU))
	}
	return t.String()
}
