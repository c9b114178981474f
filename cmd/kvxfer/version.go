package main

import (
	"flag"
	"fmt"
	"io"
	"runtime"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const versionHelp = `Usage:
  kvxfer version [--json]

Says which build this is, and which versions of the protocol it speaks. It asks no daemon: kvxfer nodes says which versions run.

Flags:
  --json   one JSON object instead of text
  --help   this text

Exit codes: 0 done; 2 wrong usage.
`

func printVersion(args []string, stdout, stderr io.Writer) int {
	c := &command.Command{Name: "version", Help: versionHelp, Stdout: stdout, Stderr: stderr}
	names, code, done := c.Parse(flag.NewFlagSet("version", flag.ContinueOnError), args)
	if done {
		return code
	}
	if len(names) > 0 {
		return c.Misused("unexpected argument %q", names[0])
	}
	info := struct {
		Version     string `json:"version"`
		Commit      string `json:"commit,omitempty"`
		Go          string `json:"go"`
		Platform    string `json:"platform"`
		MinProtocol int    `json:"min_protocol"`
		MaxProtocol int    `json:"max_protocol"`
	}{version.Version, version.Commit(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, wire.MinVersion, wire.MaxVersion}
	if c.JSON {
		return c.PrintJSON(info)
	}
	commit := ""
	if info.Commit != "" {
		commit = "commit " + info.Commit + ", "
	}
	fmt.Fprintf(stdout, "kvxfer %s (%s%s, %s, protocol %d to %d)\n", info.Version, commit, info.Go, info.Platform, info.MinProtocol, info.MaxProtocol)
	return command.OK
}
