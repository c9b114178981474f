package wire

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/version"
)

// ticketPrefix names the ticket's format version.
const ticketPrefix = "kvx1."

// MaxTicket bounds a ticket's length in bytes.
const MaxTicket = 64 << 10

// Ticket is the capability of a lease: whoever has it may bind the lease once. It is opaque to clients.
type Ticket struct {
	Grants      []TicketGrant `json:"grants"` // one per owning node
	Traceparent string        `json:"traceparent,omitempty"`
}

// TicketGrant is the part of one owning node.
type TicketGrant struct {
	Node   string `json:"node"`
	Epoch  string `json:"epoch"`
	Addr   string `json:"addr"`   // of the node's peer port; the registry's view goes first where it knows the node
	Lease  string `json:"lease"`  // 32 hex digits
	Secret []byte `json:"secret"` // 16 random bytes
	Blocks uint32 `json:"blocks,omitempty"`
	Mode   string `json:"mode,omitempty"` // "" is "write"; "read"
	Raw    bool   `json:"raw,omitempty"`  // of an advertised region: no blocks
	Rank   uint32 `json:"rank,omitempty"` // of an instance's lease: the rank whose part it is
}

// String is what logs may show: never the capability.
func (t *Ticket) String() string { return "ticket with " + strconv.Itoa(len(t.Grants)) + " grant(s)" }

// Encode makes the JSON-safe string that travels with a request. Never log it.
func (t *Ticket) Encode() string {
	raw, err := json.Marshal(t)
	if err != nil { // no field of Ticket can fail to marshal
		panic(err)
	}
	return ticketPrefix + base64.RawURLEncoding.EncodeToString(version.WithUnknownFields(raw))
}

// ParseTicket reads a ticket; the error never repeats its text.
func ParseTicket(s string) (*Ticket, error) {
	bad := func(format string, args ...any) (*Ticket, error) {
		e := fault.New(fault.TicketInvalid, "ticket", format, args...)
		e.Field = "ticket"
		return nil, e
	}
	if len(s) > MaxTicket {
		return bad("%d bytes, allowed up to %d", len(s), MaxTicket)
	}
	body, ok := strings.CutPrefix(s, ticketPrefix)
	if !ok {
		return bad("it does not begin with %q", ticketPrefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil {
		return bad("it is not base64url")
	}
	var t Ticket
	if err := json.Unmarshal(raw, &t); err != nil {
		return bad("its body cannot be read")
	}
	if len(t.Grants) == 0 {
		return bad("it holds no grant")
	}
	for _, g := range t.Grants {
		if !isHex(g.Lease, 16) || !isHex(g.Epoch, 16) || len(g.Secret) != 16 || g.Node == "" || g.Addr == "" || (g.Blocks == 0) != g.Raw ||
			(g.Mode != "" && g.Mode != ModeWrite && g.Mode != ModeRead) {
			return bad("a grant is incomplete")
		}
	}
	return &t, nil
}

// isHex accepts lower case only: ids are compared as strings, so each has one spelling.
func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == n && s == strings.ToLower(s)
}
