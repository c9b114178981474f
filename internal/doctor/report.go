package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// Verdict is what a check concludes.
type Verdict string

// Verdicts.
const (
	OK   Verdict = "ok"
	Warn Verdict = "warn"
	Fail Verdict = "fail"
)

// Check is the outcome of one check.
type Check struct {
	ID      string  `json:"id"`
	Verdict Verdict `json:"verdict"`
	Finding string  `json:"finding"`
	Remedy  string  `json:"remedy,omitempty"` // what to do; not with OK
}

func ok(format string, args ...any) Check {
	return Check{Verdict: OK, Finding: fmt.Sprintf(format, args...)}
}

func warn(remedy, format string, args ...any) Check {
	return Check{Verdict: Warn, Finding: fmt.Sprintf(format, args...), Remedy: remedy}
}

func fail(remedy, format string, args ...any) Check {
	return Check{Verdict: Fail, Finding: fmt.Sprintf(format, args...), Remedy: remedy}
}

// Subject is what is looked at.
type Subject struct {
	Host   *Host
	Config *config.Config // nil: ConfigErr says why there is none
	// ConfigErr is why the configuration cannot be used, joined where there are several reasons.
	ConfigErr error
	Socket    string  // of the daemon
	Daemon    *Daemon // nil: none answers there
	// NoDaemon is why Daemon is nil: DaemonUnavailable where nobody listens there.
	NoDaemon error
	// Rails says which RDMA devices the configuration allows. Without Networks those of the host are used.
	Rails pick.Options

	view *view // made once
}

// Daemon is what the running daemon says of itself.
type Daemon struct {
	Node, Version, PeerAddr, HTTPAddr string
	PID                               int // 0: unknown
	Draining, Registry                bool
}

// IDs are the checks of the host in their order. Those of RDMA ports (Ports), "port-DEVICE:N", and
// those of providers, "provider-NAME", follow in the order of the configuration.
var IDs = []string{"configuration", "daemon", "kernel", "memfd", "pidfd", "process-memory", "memlock", "open-files", "memory", "huge-pages",
	"cpu", "numa", "clock", "container", "socket", "state-dir", "listen", "http", "advertise", "registry", "certificates", "verbs",
	"rdma-access", "rdma-memory", "cuda"}

// Run makes the checks of the host in the order of IDs.
func Run(s *Subject) []Check {
	checks := []func() Check{s.configuration, s.daemon, s.Host.kernel, s.Host.memfd, s.Host.pidfd, s.Host.processMemory, s.memlock, s.Host.openFiles,
		s.Host.memory, s.Host.hugePages, s.Host.cpu, s.Host.numa, s.Host.clock, s.Host.container, s.socket, s.stateDir, s.listen, s.http, s.advertise,
		s.registry, s.certificates, s.verbs, s.rdmaAccess, s.rdmaMemory, s.Host.cuda}
	out := make([]Check, len(checks))
	for i, f := range checks {
		out[i] = f()
		out[i].ID = IDs[i]
	}
	return out
}

// Worst is the worst verdict of some checks.
func Worst(checks []Check) Verdict {
	worst := OK
	for _, c := range checks {
		switch {
		case c.Verdict == Fail:
			return Fail
		case c.Verdict == Warn:
			worst = Warn
		}
	}
	return worst
}

// unknown is the answer of a check that needs a configuration where there is none.
func unknown() Check {
	return warn("correct the configuration first", "not looked at: the configuration cannot be used")
}

func (s *Subject) configuration() Check {
	if s.ConfigErr != nil {
		return fail("set what is named to what is allowed; the environment (KVXFER_*) and the file of --config were read, flags of kvxfer serve are not seen here", "%v", s.ConfigErr)
	}
	c := s.Config
	if c.InsecurePeers {
		return warn("give each node a certificate (--tls-cert, --tls-key, --tls-ca), unless nobody else is on that network",
			"node %s: peers are neither encrypted nor authenticated (insecure-peers)", c.Node)
	}
	return ok("node %s, tenant %s, providers %v", c.Node, c.Tenant, c.Providers)
}

func (s *Subject) daemon() Check {
	d := s.Daemon
	switch {
	case s.silent():
		return fail("look whether its process is stopped or stuck; SIGQUIT makes it log its stacks and end", "whoever serves %s does not answer: %v", s.Socket, s.NoDaemon)
	case s.refused():
		return warn("ask as root or as the daemon's own user, or let this one in (--allow-uid)", "the daemon at %s does not let this user in: %v", s.Socket, s.NoDaemon)
	case d == nil:
		return warn("start it: kvxfer serve; or name its socket with --socket", "no daemon answers at %s", s.Socket)
	case d.Draining:
		return warn("it grants nothing new; start another one when it has ended", "node %s (%s) is draining", d.Node, d.Version)
	case s.Config != nil && s.Config.Node != d.Node:
		return warn("give this command the daemon's own environment and --config", "node %s (%s) answers at %s; the configuration read here is of node %s", d.Node, d.Version, s.Socket, s.Config.Node)
	}
	return ok("node %s (%s) answers at %s", d.Node, d.Version, s.Socket)
}

// silent says that somebody took the connection and then said nothing.
func (s *Subject) silent() bool { return fault.CodeOf(s.NoDaemon) == fault.DeadlineExceeded }

// refused says that there is a daemon, or its socket, and that this user may not use it.
func (s *Subject) refused() bool {
	return fault.CodeOf(s.NoDaemon) == fault.PermissionDenied || errors.Is(s.NoDaemon, fs.ErrPermission)
}

// host splits an address; "" where there is none.
func hostOf(addr string) string {
	h, _, err := net.SplitHostPort(addr)
	if err != nil {
		return ""
	}
	return h
}
