package wire

import (
	"github.com/kvxfer/kvxfer/internal/fault"
)

// Limits of a probe, which hold for both nodes.
const (
	// MaxProbeBytes is the most that one step of a probe moves. The scratch memory is three times as large.
	MaxProbeBytes = 1 << 20
	// MaxProbeMillis is the longest life of a probe's scratch memory.
	MaxProbeMillis = 60_000
	// MaxStepMillis is the longest time of one step of a probe.
	MaxStepMillis = 10_000
	// ProbeSeedBytes is the length of the seed that a probe's contents are made from.
	ProbeSeedBytes = 32
)

// Probe asks the daemon to move bytes between itself and another node, both ways and begun by both sides.
type Probe struct {
	Node          string `json:"node"`
	Provider      string `json:"provider"`   // the only one to use
	Bytes         uint64 `json:"bytes"`      // of each step, 1..MaxProbeBytes
	TimeoutMillis int64  `json:"timeout_ms"` // of each step, 1..MaxStepMillis; a peer that does not answer takes five of them
}

// ProbeInfo answers it, also where steps failed. It has an error of its own only where the node is not known.
type ProbeInfo struct {
	Node      string      `json:"node"`
	Epoch     string      `json:"epoch"`
	Addr      string      `json:"addr"`                // at which it was dialed
	Providers []string    `json:"providers,omitempty"` // of the far node, as it announced them
	Steps     []ProbeStep `json:"steps"`               // this node writes, it reads, the far node writes, it reads
	Ways      []ProbeWay  `json:"ways,omitempty"`      // from this node, of a provider that chooses; as they are after the steps
	Unused    []string    `json:"unused,omitempty"`    // in words: what of both sides it does not use, and why
}

// ProbeWay is a port of this node and one of the far node's that a provider has joined.
type ProbeWay struct {
	Local     string `json:"local"`
	Peer      string `json:"peer"`
	LocalAddr string `json:"local_addr"`
	PeerAddr  string `json:"peer_addr"`
	MTU       int    `json:"mtu"`              // bytes; 0: unknown
	Shared    bool   `json:"shared,omitempty"` // one of the two ports is part of another way too
	Why       string `json:"why"`
}

// ProbeStep is one transfer of a probe. Without an error the bytes arrived and are those that were sent.
type ProbeStep struct {
	Op       string      `json:"op"`                // "write" or "read", by the side that began it
	From     string      `json:"from"`              // the node that began it
	ByPeer   bool        `json:"by_peer,omitempty"` // the far node began it
	Provider string      `json:"provider,omitempty"`
	Reason   string      `json:"provider_reason,omitempty"`
	Bytes    uint64      `json:"bytes"`
	Nanos    int64       `json:"ns"` // from the request to the outcome, on the clock of the side that began it
	Error    *fault.Wire `json:"error,omitempty"`
}

// ProbeOpen asks a peer for scratch memory that is advertised to whoever gets the tickets. A second one of the same peer
// ends the first.
type ProbeOpen struct {
	Bytes     uint64 `json:"bytes"`
	Seed      []byte `json:"seed"` // both sides make the contents from it
	TTLMillis int64  `json:"ttl_ms"`
}

// ProbeOpened answers it.
type ProbeOpened struct {
	WriteTicket string `json:"write_ticket"` // a capability: never log it
	ReadTicket  string `json:"read_ticket"`  // a capability: never log it
}

// ProbeRun asks the peer to write and to read the asker's own scratch memory, and ends the peer's.
type ProbeRun struct {
	Provider      string `json:"provider"`
	WriteTicket   string `json:"write_ticket"` // a capability: never log it
	ReadTicket    string `json:"read_ticket"`  // a capability: never log it
	TimeoutMillis int64  `json:"timeout_ms"`
}

// ProbeRan answers it.
type ProbeRan struct {
	Received bool        `json:"received"` // what the asker wrote has arrived and is what it should be
	Steps    []ProbeStep `json:"steps"`    // the peer writes, it reads
}

// What a daemon reports of itself.
const (
	ReportConfiguration = "configuration" // JSON, without what may hold passwords
	ReportLog           = "log"           // the last lines
	ReportGoroutines    = "goroutines"
)

// Report asks the daemon about itself, for people; only root and the daemon's own user may.
type Report struct {
	What string `json:"what"`
}

// Validate checks the fields.
func (r *Report) Validate() error {
	switch r.What {
	case ReportConfiguration, ReportLog, ReportGoroutines:
		return nil
	}
	return fault.Invalid("report", "what", "%q, allowed %s, %s, %s", clip(r.What, MaxName), ReportConfiguration, ReportLog, ReportGoroutines)
}

func checkProbe(bytes uint64) error {
	if bytes < 1 || bytes > MaxProbeBytes {
		return fault.Invalid("probe", "bytes", "%d, allowed 1..%d", bytes, MaxProbeBytes)
	}
	return nil
}

func checkProbeTime(field string, ms, most int64) error {
	if ms < 1 || ms > most {
		return fault.Invalid("probe", field, "%d, allowed 1..%d", ms, most)
	}
	return nil
}

// Validate checks the fields.
func (r *Probe) Validate() error {
	const op = "probe"
	return first(CheckName(op, "node", r.Node), CheckName(op, "provider", r.Provider), checkProbe(r.Bytes),
		checkProbeTime("timeout_ms", r.TimeoutMillis, MaxStepMillis))
}

// Validate checks the fields.
func (r *ProbeOpen) Validate() error {
	if n := len(r.Seed); n != ProbeSeedBytes {
		return fault.Invalid("probe", "seed", "%d bytes, allowed %d", n, ProbeSeedBytes)
	}
	return first(checkProbe(r.Bytes), checkProbeTime("ttl_ms", r.TTLMillis, MaxProbeMillis))
}

// Validate checks the fields but the tickets, which ParseTicket reads.
func (r *ProbeRun) Validate() error {
	return first(CheckName("probe", "provider", r.Provider), checkProbeTime("timeout_ms", r.TimeoutMillis, MaxStepMillis))
}

// Validate checks what a peer told of its steps: it is told to a client, in a frame that must not grow too large.
func (r *ProbeRan) Validate() error {
	const op = "probe"
	if len(r.Steps) != 2 {
		return fault.Invalid(op, "steps", "%d, allowed 2", len(r.Steps))
	}
	for _, s := range r.Steps {
		if err := first(checkMode(op, s.Op), checkText(op, "provider", s.Provider, 0), checkText(op, "provider_reason", s.Reason, 0)); err != nil {
			return err
		}
	}
	return nil
}
