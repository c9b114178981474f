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

	"github.com/kvxfer/kvxfer/internal/traceview"
)

const usage = `Usage:
  kvxfer trace list --file FILE [--file FILE ...] [--json]
  kvxfer trace show ID|latest --file FILE [--file FILE ...] [--svg OUT] [--title T] [--width N] [--json]

Reads trace files (OTLP JSON lines, as written by kvxfer serve --trace-file) of one or more processes and puts
together what belongs to one trace. ID is a trace id or the beginning of one; latest is the one that began last.

Flags:
  --file FILE   a trace file; repeat it for the files of several nodes
  --json        JSON instead of text
  --svg OUT     show: also write a picture of the timeline
  --title T     show: the picture's title (default: the longest span's name)
  --width N     show: columns of the text, 60 to 400 (default 120)

Exit codes: 0 done; 1 no such trace, or a file cannot be read or written; 2 wrong usage.
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
	if args[0] == "show" {
		fs.StringVar(&c.svg, "svg", "", "")
		fs.StringVar(&c.title, "title", "", "")
		fs.IntVar(&c.width, "width", 120, "")
	}
	names, err := parse(fs, args[1:])
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitOK
	case err != nil:
		return c.misused("%v", err)
	case len(c.files) == 0:
		return c.misused("--file is needed")
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
	svg, title     string
	width          int
}

func (c *command) misused(format string, args ...any) int {
	fmt.Fprintf(c.stderr, "kvxfer trace: "+format+"\n\n%s", append(args, usage)...)
	return exitUsage
}

func (c *command) failed(err error) int {
	fmt.Fprintf(c.stderr, "kvxfer trace: %v\n", err)
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

func (c *command) list() int {
	set, err := c.read()
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
	set, err := c.read()
	if err != nil {
		return c.failed(err)
	}
	id, err := set.Find(name)
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
