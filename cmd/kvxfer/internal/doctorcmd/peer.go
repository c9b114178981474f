package doctorcmd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/doctor"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// PeerReport is what `kvxfer doctor --peer NODE --json` prints.
type PeerReport struct {
	Verdict   doctor.Verdict `json:"verdict"`
	Node      string         `json:"node"` // this one
	Peer      string         `json:"peer"`
	Addr      string         `json:"addr"` // of the peer
	Providers []PeerProvider `json:"providers"`
}

// PeerProvider is the way to the peer over one provider.
type PeerProvider struct {
	Provider string         `json:"provider"`
	Verdict  doctor.Verdict `json:"verdict"`
	Here     bool           `json:"here"`             // this node has it
	There    bool           `json:"there"`            // the peer announced it
	Remedy   string         `json:"remedy,omitempty"` // where one side has it not
	Steps    []PeerStep     `json:"steps,omitempty"`  // where both have it: four
	Ways     []PeerWay      `json:"ways,omitempty"`   // what a provider that chooses has chosen from here to the peer
	Unused   []string       `json:"unused,omitempty"` // what of both sides it does not use, and why
}

// PeerWay is a port here and one of the peer's that are joined.
type PeerWay struct {
	Local     string `json:"local"`
	Peer      string `json:"peer"`
	LocalAddr string `json:"local_addr"`
	PeerAddr  string `json:"peer_addr"`
	MTU       int    `json:"mtu"`
	Shared    bool   `json:"shared"` // one of the two has another way too
	Why       string `json:"why"`
}

// PeerStep is one transfer.
type PeerStep struct {
	From    string         `json:"from"` // whose bytes moved
	To      string         `json:"to"`
	BegunBy string         `json:"begun_by"` // who connected
	Op      string         `json:"op"`       // "write" or "read", by who began it
	Verdict doctor.Verdict `json:"verdict"`
	Bytes   uint64         `json:"bytes"`
	Nanos   int64          `json:"ns"`
	Reason  string         `json:"provider_reason,omitempty"`
	Error   *fault.Wire    `json:"error,omitempty"`
	Remedy  string         `json:"remedy,omitempty"`
}

type peerRequest struct {
	node, provider string
	timeout        time.Duration
}

func runPeer(c *command.Command, socket string, q peerRequest) int {
	r, err := askPeer(context.Background(), socket, q)
	if err != nil {
		return c.Fail(err)
	}
	if c.JSON {
		if code := c.PrintJSON(r); code != command.OK {
			return code
		}
	} else {
		printPeer(c.Stdout, r)
	}
	if r.Verdict == doctor.Fail {
		return command.Failed
	}
	return command.OK
}

// askPeer has the daemon probe the node over each provider in turn.
func askPeer(ctx context.Context, socket string, q peerRequest) (*PeerReport, error) {
	conn, err := daemon.Dial(ctx, socket, "")
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	var st wire.Status
	if _, err := conn.Call(ctx, wire.KindStatus, nil, nil, &st); err != nil {
		return nil, err
	}
	names := st.Providers
	if q.provider != "" {
		names = []string{q.provider}
	}
	r := &PeerReport{Verdict: doctor.OK, Node: st.Node, Peer: q.node}
	var there []string
	for _, name := range names {
		info, err := ask(ctx, conn, wire.Probe{Node: q.node, Provider: name, Bytes: ProbeBytes, TimeoutMillis: q.timeout.Milliseconds()})
		if err != nil {
			return nil, known(err, st.Nodes)
		}
		r.Addr, there = info.Addr, info.Providers
		p := judge(&st, info, name)
		if q.provider != "" && len(p.Steps) == 0 {
			p.Verdict = doctor.Fail // it was asked about this one, and nothing moved
		}
		r.Providers = append(r.Providers, p)
	}
	if q.provider == "" {
		for _, name := range there {
			if !slices.Contains(names, name) {
				r.Providers = append(r.Providers, lacking(name, false, true, st.Node, why(&st, name)))
			}
		}
	}
	for _, p := range r.Providers {
		if p.Verdict == doctor.Fail || r.Verdict == doctor.OK {
			r.Verdict = p.Verdict
		}
	}
	return r, nil
}

// ask makes one probe; the daemon bounds it by its steps.
func ask(ctx context.Context, conn *daemon.Conn, q wire.Probe) (*wire.ProbeInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, 6*time.Duration(q.TimeoutMillis)*time.Millisecond+daemon.DefaultTimeout)
	defer cancel()
	var info wire.ProbeInfo
	_, err := conn.Call(ctx, wire.KindProbe, &q, nil, &info)
	return &info, err
}

// judge says what a probe tells of a provider.
func judge(st *wire.Status, info *wire.ProbeInfo, name string) PeerProvider {
	here, there := slices.Contains(st.Providers, name), slices.Contains(info.Providers, name)
	switch {
	case !here:
		return lacking(name, here, there, st.Node, why(st, name))
	case !there:
		return lacking(name, here, there, info.Node, "")
	}
	p := PeerProvider{Provider: name, Verdict: doctor.OK, Here: true, There: true, Unused: info.Unused}
	for _, w := range info.Ways {
		p.Ways = append(p.Ways, PeerWay(w))
	}
	for _, s := range info.Steps {
		x := PeerStep{From: s.From, To: info.Node, BegunBy: s.From, Op: s.Op, Bytes: s.Bytes, Nanos: s.Nanos, Reason: s.Reason, Error: s.Error}
		if s.ByPeer {
			x.To = st.Node
		}
		asked := x.To
		if s.Op == wire.ModeRead {
			x.From, x.To = x.To, x.From
		}
		x.Verdict, x.Remedy = verdict(name, s.From, asked, s.Error)
		if x.Verdict == doctor.Fail || p.Verdict == doctor.OK {
			p.Verdict = x.Verdict
		}
		p.Steps = append(p.Steps, x)
	}
	return p
}

// lacking is a provider that one of the two nodes does not have. Transfers use another one.
func lacking(name string, here, there bool, who, why string) PeerProvider {
	remedy := fmt.Sprintf("node %s has no %s: add it there (--providers), or leave it; transfers use what both have", who, name)
	switch {
	case why != "":
		remedy = fmt.Sprintf("node %s cannot use %s: %s; transfers use what both have", who, name, why)
	case name == "verbs":
		remedy += "; where it is in the list already, kvxfer doctor on that host says why it is left out"
	}
	return PeerProvider{Provider: name, Verdict: doctor.Warn, Here: here, There: there, Remedy: remedy}
}

// why is what the asked daemon says of a provider that it cannot use; "": nothing.
func why(st *wire.Status, name string) string {
	for _, a := range st.Absent {
		if a.Provider == name {
			return a.Why
		}
	}
	return ""
}

// verdict judges a step's error. Two nodes that are not on one host have no way over shm, and none is missing.
func verdict(provider, by, to string, w *fault.Wire) (doctor.Verdict, string) {
	if w == nil {
		return doctor.OK, ""
	}
	switch w.Code {
	case fault.PeerUnreachable:
		if provider == "shm" {
			return doctor.Warn, fmt.Sprintf("nothing, where %s and %s are on two hosts: shm is for daemons that see one another's state directory; transfers use the next provider", by, to)
		}
		if provider == "verbs" {
			return doctor.Fail, fmt.Sprintf("let RDMA packets from %s to %s through (RoCE v2: UDP port 4791), with one MTU and one address family for both, or leave it; kvxfer doctor on both hosts lists devices and addresses", by, to)
		}
		return doctor.Fail, fmt.Sprintf("let connections from %s to %s at its peer address through: firewall, routes, --listen and --advertise of %s", by, to, to)
	case fault.DeadlineExceeded, fault.PeerLost:
		return doctor.Fail, fmt.Sprintf("find out what drops packets between %s and %s (MTU, a firewall that forgets connections), or give more time (--timeout)", by, to)
	case fault.NotSupported:
		return doctor.Warn, fmt.Sprintf("the daemons of %s and %s were configured or built otherwise than they announced: look at --providers", by, to)
	case fault.PermissionDenied:
		return doctor.Fail, fmt.Sprintf("give %s and %s certificates of authorities that both believe (--tls-cert, --tls-key, --tls-ca), with their node names", by, to)
	case fault.StaleEpoch, fault.NotFound:
		return doctor.Fail, "a daemon was restarted, or the registry has not told everybody yet: try again"
	case fault.Draining:
		return doctor.Fail, "a daemon is ending: try again when it has been started"
	case fault.VersionMismatch, fault.FeatureRequired:
		return doctor.Fail, "upgrade the older daemon"
	case fault.ResourceExhausted:
		return doctor.Fail, "try again when less is going on"
	}
	return doctor.Fail, "see " + w.Code.String() + " in docs/errors.md"
}

func printPeer(w io.Writer, r *PeerReport) {
	fmt.Fprintf(w, "%s to %s (%s)\n", r.Node, r.Peer, clean(r.Addr))
	for _, p := range r.Providers {
		if len(p.Steps) == 0 {
			fmt.Fprintf(w, "%-4s  %s\n      -> %s\n", p.Verdict, p.Provider, clean(p.Remedy))
		}
		for _, s := range p.Steps {
			fmt.Fprintf(w, "%-4s  %-4s  %s -> %s, %s by %s: ", s.Verdict, p.Provider, s.From, s.To, s.Op, s.BegunBy)
			if s.Error == nil {
				fmt.Fprintf(w, "%s in %s (%s)\n", command.Bytes(s.Bytes), round(time.Duration(s.Nanos)), clean(s.Reason))
			} else {
				fmt.Fprintf(w, "%s\n      -> %s\n", clean(fault.FromWire(s.Error).Error()), s.Remedy)
			}
		}
		printWays(w, &p)
	}
}

// printWays tells what a provider has chosen between the two nodes.
func printWays(w io.Writer, p *PeerProvider) {
	for _, x := range p.Ways {
		mtu, shared := "MTU not known", ""
		if x.MTU > 0 {
			mtu = fmt.Sprintf("MTU %d", x.MTU)
		}
		if x.Shared {
			shared = ", shared"
		}
		fmt.Fprintf(w, "      %s (%s) with %s (%s), %s%s: %s\n", clean(x.Local), clean(x.LocalAddr), clean(x.Peer), clean(x.PeerAddr), mtu, shared, clean(x.Why))
	}
	for _, x := range p.Unused {
		fmt.Fprintf(w, "      not used: %s\n", clean(x))
	}
}
