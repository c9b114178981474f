package supportcmd

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/fault"
)

const help = `Usage:
  kvxfer support [--out FILE] [--config FILE] [--socket PATH] [--json]

Writes an archive (tar, gzip) with what helps to find a fault: the version, the findings of kvxfer doctor, the daemon's status,
nodes, caches, leases, transfers, configuration, last log lines, goroutines and metrics, and the kernel's limits. Tickets, keys and passwords are not in it; names
of nodes, addresses, tenants and caches are. It works without a running daemon, with less in it.

Flags:
  --out FILE     where to write it; it must not exist (default: kvxfer-support-DATE.tar.gz here)
  --config FILE  the daemon's configuration file (default: $KVXFER_CONFIG)
  --socket PATH  the daemon's socket (default: the configuration's, else $KVXFER_SOCKET or the usual path)
  --json         say as JSON what was written

Exit codes: 0 written; 1 not written; 2 wrong usage.
`

// Written is what `kvxfer support --json` prints.
type Written struct {
	File    string            `json:"file"`
	Parts   []string          `json:"parts"`
	Missing map[string]string `json:"missing,omitempty"` // parts that could not be had, and why
}

// Run executes `kvxfer support` with the arguments behind the name and returns the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	c := &command.Command{Name: "support", Help: help, Stdout: stdout, Stderr: stderr}
	flags := flag.NewFlagSet("support", flag.ContinueOnError)
	out := flags.String("out", "kvxfer-support-"+time.Now().UTC().Format("20060102T150405Z")+".tar.gz", "")
	file := flags.String("config", "", "")
	socket := flags.String("socket", "", "")
	names, code, done := c.Parse(flags, args)
	if done {
		return code
	}
	if len(names) > 0 {
		return c.Misused("unexpected argument %q", names[0])
	}
	// First of all: whether it can be written is known before anything is asked.
	f, err := os.OpenFile(*out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return c.Fail(cannotWrite(err))
	}
	parts, missing := gather(context.Background(), *file, *socket)
	if err := errors.Join(writeArchive(f, parts), f.Close()); err != nil {
		_ = os.Remove(*out)
		return c.Fail(cannotWrite(err))
	}
	w := Written{File: *out, Missing: missing}
	for _, p := range parts {
		w.Parts = append(w.Parts, p.name)
	}
	if c.JSON {
		return c.PrintJSON(w)
	}
	fmt.Fprintf(stdout, "%s: %d files\n", w.File, len(w.Parts))
	for _, s := range sources {
		if why, ok := missing[s.name]; ok {
			fmt.Fprintf(stdout, "without %s: %s\n", s.name, why)
		}
	}
	return command.OK
}

func cannotWrite(err error) error {
	code := fault.Internal
	switch {
	case errors.Is(err, fs.ErrExist):
		code = fault.AlreadyExists
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		code = fault.InvalidArgument
	}
	return &fault.Error{Code: code, Op: "support", Field: "out", Err: err} // which names the path
}

// part is one file of the archive.
type part struct {
	name string
	text []byte
}

func writeArchive(w io.Writer, parts []part) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, p := range parts {
		if err := t.WriteHeader(&tar.Header{Name: "kvxfer-support/" + p.name, Mode: 0o600, Size: int64(len(p.text)), ModTime: time.Now()}); err != nil {
			return err
		}
		if _, err := t.Write(p.text); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}
