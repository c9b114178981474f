package main

import (
	"fmt"
	"io"
	"os"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/benchcmd"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/doctorcmd"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/nodecmd"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/supportcmd"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/tracecmd"
)

// action runs one command with the arguments behind its name and returns the exit code.
type action struct {
	name    string
	args    string
	meaning string
	run     func(args []string, stdout, stderr io.Writer) int
}

// actions is the table that the usage is made from, in this order.
var actions = []action{
	{"serve", "[flags]", "run this host's daemon", serve},
	{"nodes", "[--json]", "list the nodes", nodecmd.Nodes},
	{"caches", "[--json]", "list the caches of all nodes", nodecmd.Caches},
	{"blocks", "CACHE [--json]", "list a cache's blocks", nodecmd.Blocks},
	{"leases", "[ID] [--json]", "list the leases of this node", nodecmd.Leases},
	{"transfers", "[show ID]", "list the transfers of this node", nodecmd.Transfers},
	{"drain", "[--timeout D]", "have this host's daemon start nothing new", nodecmd.Drain},
	{"log-level", "[LEVEL]", "say or set what the daemon logs", nodecmd.LogLevel},
	{"trace", "list|show", "show where the time of a transfer went", tracecmd.Run},
	{"bench", "copy|tcp|shm|verbs", "measure transfers beside this machine's limits", benchcmd.Run},
	{"doctor", "[--peer NODE]", "say what this host can do, and what the way to a node carries", doctorcmd.Run},
	{"support", "[--out FILE]", "gather what helps to find a fault, without secrets", supportcmd.Run},
	{"version", "[--json]", "say which build this is", printVersion},
}

const (
	usageHead = "kvxfer moves the KV cache of large language models between nodes.\n\nUsage:\n"
	usageTail = "\nEach command explains itself with --help. Exit codes: 0 done, 1 failed, 2 wrong usage.\n"
)

func usage(w io.Writer) {
	fmt.Fprint(w, usageHead)
	for _, a := range actions {
		fmt.Fprintf(w, "  kvxfer %-26s %s\n", a.name+" "+a.args, a.meaning)
	}
	fmt.Fprint(w, usageTail)
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		usage(stderr)
		return 2
	}
	switch args[0] {
	case "--version":
		return printVersion(args[1:], stdout, stderr)
	case "help", "--help", "-h":
		if len(args) > 1 {
			return run([]string{args[1], "--help"}, stdout, stderr)
		}
		usage(stdout)
		return 0
	}
	for _, a := range actions {
		if a.name == args[0] {
			return a.run(args[1:], stdout, stderr)
		}
	}
	fmt.Fprintf(stderr, "kvxfer: no command %q\n\n", args[0])
	usage(stderr)
	return 2
}
