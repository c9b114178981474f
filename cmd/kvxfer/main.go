package main

import (
	"fmt"
	"io"
	"os"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/tracecmd"
)

const usage = `kvxfer moves the KV cache of large language models between nodes.

Usage:
  kvxfer serve [flags]     run this host's daemon
  kvxfer trace list|show   look at traces in trace files
  kvxfer version [--json]  say which build this is

Each command explains itself with --help. Exit codes: 0 done, 1 failed, 2 wrong usage.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return 2
	}
	switch args[0] {
	case "serve":
		return serve(args[1:], stdout, stderr)
	case "trace":
		return tracecmd.Run(args[1:], stdout, stderr)
	case "version", "--version":
		return printVersion(args[1:], stdout, stderr)
	case "help", "--help", "-h":
		fmt.Fprint(stdout, usage)
		return 0
	}
	fmt.Fprintf(stderr, "kvxfer: no command %q\n\n%s", args[0], usage)
	return 2
}
