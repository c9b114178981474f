package tracecmd

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/fault"
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

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

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
	c := command{stdout: stdout, stderr: stderr}
	switch {
	case len(args) == 0:
		return c.misused("say list or show")
	case args[0] == "help" || args[0] == "-h" || args[0] == "-help" || args[0] == "--help":
		fmt.Fprint(stdout, usage)
		return exitOK
	case args[0] != "list" && args[0] != "show":
		return c.misused("unknown command %q", args[0])
	}
	fs := flag.NewFlagSet("trace "+args[0], flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Var(&c.files, "file", "")
	fs.BoolVar(&c.json, "json", false, "")
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
	names, err := parse(fs, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		return c.misused("%v", err)
	case len(c.files) > 0 && (c.socket != "" || c.tenant != "" || c.local):
		return c.misused("--file asks no daemon: it goes without --socket, --tenant and --local")
	case c.timeout < minTimeout || c.timeout > maxTimeout:
		return c.misused("--timeout must be %s to %s", minTimeout, maxTimeout)
	}
	if args[0] == "list" {
		if len(names) > 0 {
			return c.misused("list takes no argument, not %q", names[0])
		}
		return c.list()
	}
	if len(names) != 1 {
		return c.misused("show takes one trace id, or latest")
	}
	if names[0] == "" {
		return c.misused("ID is empty: allowed are an id or its beginning, 1 to 32 hex digits, or latest")
	}
	if c.width < 60 || c.width > 400 {
		return c.misused("--width must be 60 to 400")
	}
	return c.show(names[0])
}

// parse takes flags before and after the arguments; the flag package alone stops at the first argument.
func parse(fs *flag.FlagSet, args []string) (names []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		if fs.NArg() == 0 {
			return names, nil
		}
		names = append(names, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

type command struct {
	stdout, stderr io.Writer
	files          files
	json           bool
	socket, tenant string
	local          bool
	timeout        time.Duration
	svg, title     string
	width          int
}

func (c *command) misused(format string, args ...any) int {
	fmt.Fprintf(c.stderr, "kvxfer trace: "+format+"\n\n%s", append(args, usage)...)
	return exitUsage
}

func (c *command) failed(err error) int {
	if c.json {
		_ = json.NewEncoder(c.stderr).Encode(map[string]any{"error": fault.ToWire(err)})
		return exitFailed
	}
	fmt.Fprintf(c.stderr, "kvxfer trace: %s\n", strings.TrimPrefix(err.Error(), "kvxfer: "))
	return exitFailed
}

// read reads all files and says what in them could not be used.
func (c *command) read() (*traceview.Set, error) {
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
		fmt.Fprintf(c.stderr, "kvxfer trace: skipped %d (sources are numbered as --file gave them): %s\n", set.Skipped, set.FirstSkipped)
	}
	return set, nil
}

// spans reads files or asks the daemon; name "" is every trace, else id is the whole id of the one that is meant.
func (c *command) spans(name string) (set *traceview.Set, id string, err error) {
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

func (c *command) list() int {
	set, _, err := c.spans("")
	if err != nil {
		return c.failed(err)
	}
	all := set.Traces()
	if c.json {
		return c.writeJSON(all)
	}
	out := &bytes.Buffer{}
	fmt.Fprintf(out, "%-32s  %-23s  %12s  %6s  %9s  %6s  %s\n", "TRACE", "START (UTC)", "MS", "SPANS", "PROCESSES", "FAILED", "NAME")
	for _, t := range all {
		fmt.Fprintf(out, "%s  %s  %12.3f  %6d  %9d  %6d  %q\n", t.TraceID, time.Unix(0, t.StartUnixNano).UTC().Format("2006-01-02 15:04:05.000"),
			float64(t.DurationNanos)/1e6, t.Spans, t.Processes, t.Failed, t.Name)
	}
	return c.write(out.Bytes())
}

func (c *command) show(name string) int {
	set, id, err := c.spans(name)
	if err != nil {
		return c.failed(err)
	}
	timeline := set.Timeline(id)
	var out bytes.Buffer
	if c.svg != "" {
		if err := traceview.SVG(&out, timeline, traceview.Options{Title: c.title}); err != nil {
			return c.failed(err)
		}
		if err := os.WriteFile(c.svg, out.Bytes(), 0o644); err != nil {
			return c.failed(err)
		}
		fmt.Fprintf(c.stderr, "kvxfer trace: wrote %s\n", c.svg)
		out.Reset()
	}
	if c.json {
		return c.writeJSON(timeline)
	}
	if err := traceview.Terminal(&out, timeline, c.width); err != nil {
		return c.failed(err)
	}
	return c.write(out.Bytes())
}

func (c *command) writeJSON(v any) int {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return c.failed(err)
	}
	return c.write(append(b, '\n'))
}

func (c *command) write(b []byte) int {
	if _, err := c.stdout.Write(b); err != nil {
		return c.failed(err)
	}
	return exitOK
}
