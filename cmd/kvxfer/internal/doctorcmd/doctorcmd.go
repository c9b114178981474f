package doctorcmd

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/doctor"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/node"
	"github.com/kvxfer/kvxfer/internal/socketpath"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const help = `Usage:
  kvxfer doctor [--config FILE] [--socket PATH] [--json]
  kvxfer doctor --peer NODE [--provider NAME] [--timeout D] [--socket PATH] [--json]

Says what this host can do and why not: kernel, limits, memory, clock, directories, ports, the registry, certificates, RDMA devices, and
each provider's own code with a megabyte inside this process. It works with a running daemon and without one.

With --peer the running daemon moves a megabyte of random bytes to and from another node over each provider, begun by both
sides, and compares what arrived.

Settings are read as kvxfer serve reads them: KVXFER_* in the environment, and the file of --config.

Flags:
  --config FILE    the daemon's configuration file (default: $KVXFER_CONFIG)
  --socket PATH    the daemon's socket (default: the configuration's, else $KVXFER_SOCKET or the usual path)
  --peer NODE      check the way to this node
  --provider NAME  with --peer: this provider alone
  --timeout D      with --peer: for each step, 1ms to 10s (default 8s)
  --json           JSON instead of text

Exit codes: 0 no check failed; 1 one did, or the daemon could not be asked; 2 wrong usage.
`

// ProbeBytes is what each step of a probe, and each provider's check, moves.
const ProbeBytes = 1 << 20

// Run executes `kvxfer doctor` with the arguments behind the name and returns the exit code.
func Run(args []string, stdout, stderr io.Writer) int {
	c := &command.Command{Name: "doctor", Help: help, Stdout: stdout, Stderr: stderr}
	fs := flag.NewFlagSet("doctor", flag.ContinueOnError)
	file := fs.String("config", "", "")
	socket := fs.String("socket", "", "")
	peer := fs.String("peer", "", "")
	provider := fs.String("provider", "", "")
	// A little more than a daemon takes to find that a connection is not made.
	timeout := fs.Duration("timeout", 8*time.Second, "")
	names, code, done := c.Parse(fs, args)
	if done {
		return code
	}
	switch ms := timeout.Milliseconds(); {
	case len(names) > 0:
		return c.Misused("unexpected argument %q", names[0])
	case *peer == "" && given(fs, "peer"):
		return c.Misused("--peer is empty, allowed is the name of a node")
	case *peer == "" && *provider != "":
		return c.Misused("--provider is for --peer")
	case ms < 1 || ms > wire.MaxStepMillis:
		return c.Misused("--timeout is %s, allowed 1ms to 10s", *timeout)
	}
	if *peer != "" {
		return runPeer(c, Place(*file, *socket), peerRequest{*peer, *provider, *timeout})
	}
	r := Host(context.Background(), *file, *socket)
	if c.JSON {
		if code := c.PrintJSON(r); code != command.OK {
			return code
		}
	} else {
		printHost(stdout, &r)
	}
	if r.Verdict == doctor.Fail {
		return command.Failed
	}
	return command.OK
}

// Report is what `kvxfer doctor --json` prints.
type Report struct {
	Verdict doctor.Verdict `json:"verdict"` // the worst one
	Checks  []doctor.Check `json:"checks"`
}

// Host checks this host. file and socket are --config and --socket, "" where they are not given.
func Host(ctx context.Context, file, socket string) Report {
	s := doctor.Subject{Host: doctor.This(), Socket: Place(file, socket)}
	s.Config, s.ConfigErr = load(file)
	rdma := &config.RDMA{}
	if s.Config != nil {
		rdma = &s.Config.RDMA
	}
	s.Host.RDMA, s.Rails = node.RDMA(rdma)
	conn, err := daemon.Dial(ctx, s.Socket, "")
	var st wire.Status
	if err == nil {
		if _, err = conn.Call(ctx, wire.KindStatus, nil, nil, &st); err == nil {
			s.Daemon = &doctor.Daemon{Node: st.Node, Version: st.Version, PeerAddr: st.PeerAddr, HTTPAddr: st.HTTPAddr, PID: conn.PID(), Draining: st.Draining, Registry: st.Registry}
		}
		conn.Close()
	}
	s.NoDaemon = err
	checks := append(append(doctor.Run(&s), doctor.Ports(&s)...), providers(ctx, s.Config, &st)...)
	return Report{doctor.Worst(checks), checks}
}

// given says whether a flag is among the arguments, be it with an empty value, as an unset variable of a script leaves it.
func given(fs *flag.FlagSet, name string) (yes bool) {
	fs.Visit(func(f *flag.Flag) { yes = yes || f.Name == name })
	return yes
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

func load(file string) (*config.Config, error) {
	var args []string
	if file != "" {
		args = []string{"--config", file}
	}
	return config.Load(args, os.Environ())
}

// Place finds the daemon's socket by the arguments --config and --socket, "" where they are not given.
func Place(file, socket string) string {
	if socket != "" {
		return socket
	}
	if cfg, err := load(file); err == nil {
		return cfg.Socket
	}
	return socketpath.Client(os.Getuid(), os.Getenv)
}

func printHost(w io.Writer, r *Report) {
	wide := 0
	for _, x := range r.Checks {
		wide = max(wide, len(x.ID))
	}
	for _, x := range r.Checks {
		fmt.Fprintf(w, "%-4s  %-*s  %s\n", x.Verdict, wide, x.ID, clean(x.Finding))
		if x.Remedy != "" {
			fmt.Fprintf(w, "%*s-> %s\n", wide+8, "", clean(x.Remedy))
		}
	}
}

// clean keeps a finding in its line, and what others put into a name from moving the terminal's cursor.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n':
			return ';'
		case r < ' ' || r >= 0x7f && r < 0xa0:
			return '?'
		}
		return r
	}, s)
}

// known adds to an error about an unknown node which ones there are.
func known(err error, nodes []string) error {
	fe := fault.From("probe", err)
	if fe.Code == fault.NotFound && len(nodes) > 0 {
		fe.Detail += "; it knows " + strings.Join(nodes, ", ")
	}
	return fe
}
