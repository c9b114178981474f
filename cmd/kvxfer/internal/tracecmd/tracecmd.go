package tracecmd

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/traceview"
)

const usage = `Usage:
  kvxfer trace list [--json]
  kvxfer trace show ID|latest [--svg OUT] [--title T] [--width N] [--json]

Asks this host's daemon for the spans that it keeps, and through it the other nodes of the trace, and puts together
what belongs to one trace. ID is a trace's id, a transfer's id, or the beginning of one; latest is the trace that
began last of those that the daemon keeps. list shows what the daemon itself keeps. A daemon keeps the last 8192
spans where tracing is on, see kvxfer serve --trace-keep.

With --file it reads trace files instead (OTLP JSON lines, as written by kvxfer serve --trace-file) of one or more
processes and asks nobody; there ID is a trace's id or its beginning.

Flags:
  --socket PATH   the daemon's socket (default $KVXFER_SOCKET, else the daemon's own default)
  --tenant NAME   whose transfers (default: the daemon's own tenant; root and the daemon's user see every tenant's)
  --timeout TIME  show: how long to wait for other nodes, 1ms to 1h (default 5s)
  --local         show: ask no other node
  --file FILE     a trace file; repeat it for the files of several nodes
  --json          JSON instead of text
  --svg OUT       show: also write a picture of the timeline
  --title T       show: the picture's title (default: the longest span's name)
  --width N       show: columns of the text, 60 to 400 (default 120)

Exit codes: 0 done; 1 no such trace, no daemon, or a file cannot be read or written; 2 wrong usage.
`

// files is a flag that may be repeated.
type files []string

func (f *files) String() string { return strings.Join(*f, ", ") }

func (f *files) Set(v string) error {
	if v == "" {
		return errors.New("must name a file")
	}
	*f = append(*f, v)
	return nil
}

// Run executes `kvxfer trace` with the arguments after "trace" and returns the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	c := invocation{Command: command.Command{Name: "trace", Help: usage, Stdout: stdout, Stderr: stderr}}
	switch {
	case len(args) == 0:
		return c.Misused("say list or show")
	case args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(stdout, usage)
		return command.OK
	case args[0] != "list" && args[0] != "show":
		return c.Misused("unknown command %q", args[0])
	}
	fs := flag.NewFlagSet("trace "+args[0], flag.ContinueOnError)
	fs.Var(&c.files, "file", "")
	fs.StringVar(&c.socket, "socket", "", "")
	fs.StringVar(&c.tenant, "tenant", "", "")
	c.timeout = daemon.DefaultTimeout
	if args[0] == "show" {
		fs.StringVar(&c.svg, "svg", "", "")
		fs.StringVar(&c.title, "title", "", "")
		fs.IntVar(&c.width, "width", 120, "")
		fs.BoolVar(&c.local, "local", false, "")
		fs.DurationVar(&c.timeout, "timeout", 5*time.Second, "")
	}
	names, code, done := c.Parse(fs, args[1:])
	switch {
	case done:
		return code
	case len(c.files) > 0 && (c.socket != "" || c.tenant != "" || c.local):
		return c.Misused("--file asks no daemon: it goes without --socket, --tenant and --local")
	case c.timeout < minTimeout || c.timeout > maxTimeout:
		return c.Misused("--timeout must be %s to %s", minTimeout, maxTimeout)
	}
	if args[0] == "list" {
		if len(names) > 0 {
			return c.Misused("list takes no argument, not %q", names[0])
		}
		return c.list()
	}
	if len(names) != 1 {
		return c.Misused("show takes one trace id, or latest")
	}
	if names[0] == "" {
		return c.Misused("ID is empty: allowed are an id or its beginning, 1 to 32 hex digits, or latest")
	}
	if c.width < 60 || c.width > 400 {
		return c.Misused("--width must be 60 to 400")
	}
	return c.show(names[0])
}

// invocation is one run of the command.
type invocation struct {
	command.Command
	files          files
	socket, tenant string
	local          bool
	timeout        time.Duration
	svg, title     string
	width          int
}

// read reads all files and says what in them could not be used.
func (c *invocation) read() (*traceview.Set, error) {
	var readers []io.Reader
	for _, name := range c.files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		readers = append(readers, f)
	}
	set, err := traceview.Read(readers...)
	if err != nil {
		return nil, err
	}
	if set.Skipped > 0 {
		fmt.Fprintf(c.Stderr, "kvxfer trace: skipped %d (sources are numbered as --file gave them): %s\n", set.Skipped, set.FirstSkipped)
	}
	return set, nil
}

// spans reads files or asks the daemon; name "" is every trace, else id is the whole id of the one that is meant.
func (c *invocation) spans(name string) (set *traceview.Set, id string, err error) {
	if len(c.files) == 0 {
		set, id, err = c.ask(name)
	} else {
		set, err = c.read()
		if err == nil && name != "" {
			id, err = set.Find(name)
		}
	}
	if err == nil && name != "" && set.Timeline(id) == nil {
		err = fmt.Errorf("no span of trace %s came", id)
	}
	return set, id, err
}

func (c *invocation) list() int {
	set, _, err := c.spans("")
	if err != nil {
		return c.Fail(err)
	}
	all := set.Traces()
	if c.JSON {
		return c.PrintJSON(all)
	}
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "%-32s  %-23s  %12s  %6s  %9s  %6s  %s\n", "TRACE", "START (UTC)", "MS", "SPANS", "PROCESSES", "FAILED", "NAME")
	for _, t := range all {
		fmt.Fprintf(out, "%s  %s  %12.3f  %6d  %9d  %6d  %q\n", t.TraceID, time.Unix(0, t.StartUnixNano).UTC().Format("2006-01-02 15:04:05.000"),
			float64(t.DurationNanos)/1e6, t.Spans, t.Processes, t.Failed, t.Name)
	}
	return c.write(out.Bytes())
}

func (c *invocation) show(name string) int {
	set, id, err := c.spans(name)
	if err != nil {
		return c.Fail(err)
	}
	timeline := set.Timeline(id)
	var out bytes.Buffer
	if c.svg != "" {
		if err := traceview.SVG(&out, timeline, traceview.Options{Title: c.title}); err != nil {
			return c.Fail(err)
		}
		if err := os.WriteFile(c.svg, out.Bytes(), 0o644); err != nil {
			return c.Fail(err)
		}
		fmt.Fprintf(c.Stderr, "kvxfer trace: wrote %s\n", c.svg)
		out.Reset()
	}
	if c.JSON {
		return c.PrintJSON(timeline)
	}
	if err := traceview.Terminal(&out, timeline, c.width); err != nil {
		return c.Fail(err)
	}
	return c.write(out.Bytes())
}

func (c *invocation) write(b []byte) int {
	if _, err := c.Stdout.Write(b); err != nil {
		return c.Fail(err)
	}
	return command.OK
}
