package wire

import (
	"fmt"
	"slices"
	"sort"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Hello opens both protocols. The side that connects sends it first; the answer is HELLO_OK with the same fields,
// Version chosen, or an ERROR.
type Hello struct {
	MinVersion int      `json:"min_version"`
	MaxVersion int      `json:"max_version"`
	Version    int      `json:"version,omitempty"`  // chosen; in HELLO_OK only
	Required   []string `json:"required,omitempty"` // features the sender cannot do without
	Optional   []string `json:"optional,omitempty"` // features the sender would use
	Tenant     string   `json:"tenant"`
	Software   string   `json:"software,omitempty"` // for people: "kvxfer 0.1.0", "kvxfer-python 0.1.0"
	Node       string   `json:"node,omitempty"`     // a daemon's node name
	Epoch      string   `json:"epoch,omitempty"`    // a daemon's incarnation: 32 hex digits, compared for equality only

	// Process and Pid name a client in traces.
	Process string `json:"process,omitempty"`
	Pid     int    `json:"pid,omitempty"`
	// Observer: local HELLO; the connection hands no memory over and asks only about the daemon. It is no client, so it is
	// served while the daemon drains too.
	Observer bool `json:"observer,omitempty"`

	// WantNode and WantEpoch: the incarnation that a dialing daemon means to reach; another answers StaleEpoch.
	WantNode  string `json:"want_node,omitempty"`
	WantEpoch string `json:"want_epoch,omitempty"`

	// Providers: in a peer's HELLO what the dialer offers, best first; in HELLO_OK the one chosen, with its
	// connect parameters (base64 in JSON; they hold the session's secret and are never logged).
	Providers []string `json:"providers,omitempty"`
	Provider  string   `json:"provider,omitempty"`
	Reason    string   `json:"provider_reason,omitempty"`
	Params    []byte   `json:"provider_params,omitempty"`
	// Absent: in a peer's HELLO the providers that the dialer would have and cannot use, for the reason that is told of the one
	// that is taken.
	Absent []Absence `json:"absent,omitempty"`

	// Local HELLO_OK: what a client needs to know of its daemon.
	BootID string `json:"boot_id,omitempty"`
	// ProcessWatched: the daemon hears of the exit of the client's process. Without it only the connection's end tells.
	ProcessWatched bool `json:"process_watched,omitempty"`
}

// NewHello begins a HELLO: the versions and features of this build.
func NewHello() Hello {
	return Hello{MinVersion: MinVersion, MaxVersion: MaxVersion, Required: required, Optional: Features}
}

// NewHelloOK begins the HELLO_OK to h, for which Negotiate gave version. Its optional features are those of both sides.
func NewHelloOK(h *Hello, version int) Hello {
	answer := NewHello()
	answer.Version, answer.Optional = version, nil
	for _, f := range Features {
		if slices.Contains(h.Optional, f) {
			answer.Optional = append(answer.Optional, f)
		}
	}
	return answer
}

// Negotiate picks the version for a received hello, checks its required features and then its fields: in this order, as
// the ranges of fields belong to a version.
func Negotiate(h *Hello) (version int, err error) {
	return negotiate(h, MinVersion, MaxVersion, Features)
}

// maxNamed bounds how many unknown features an error names; the list is the other side's text.
const maxNamed = 8

func negotiate(h *Hello, lo, hi int, features []string) (int, error) {
	if h.MinVersion < 1 || h.MaxVersion < h.MinVersion {
		return 0, violation("max_version", "version range %d..%d is not 1 <= min <= max", h.MinVersion, h.MaxVersion)
	}
	v := min(h.MaxVersion, hi)
	if v < max(h.MinVersion, lo) {
		return 0, fault.New(fault.VersionMismatch, "hello", "the other side speaks %d..%d, this side %d..%d",
			h.MinVersion, h.MaxVersion, lo, hi)
	}
	known := map[string]bool{}
	for _, f := range features {
		known[f] = true
	}
	var missing []string
	for _, f := range h.Required {
		if !known[f] {
			missing = append(missing, f)
		}
	}
	if len(missing) > 0 {
		sort.Strings(missing)
		more := ""
		if n := len(missing); n > maxNamed {
			missing, more = missing[:maxNamed], fmt.Sprintf(" and %d more", n-maxNamed)
		}
		for i := range missing {
			missing[i] = clip(missing[i], MaxName)
		}
		return 0, fault.New(fault.FeatureRequired, "hello", "unknown here: %q%s", missing, more)
	}
	if err := h.Validate(); err != nil {
		return 0, err
	}
	return v, nil
}
