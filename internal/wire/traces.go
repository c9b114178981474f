package wire

import "github.com/kvxfer/kvxfer/internal/fault"

// TraceLatest is the id that stands for the trace which began last.
const TraceLatest = "latest"

// TraceQuery asks the daemon for the spans that it keeps of one trace, and that the trace's other nodes keep.
type TraceQuery struct {
	// ID is a trace's or a transfer's id, the beginning of one, "latest", or "" for every trace that this node keeps.
	ID            string `json:"id"`
	LocalOnly     bool   `json:"local_only,omitempty"` // ask no other node; so it is where ID is ""
	TimeoutMillis int64  `json:"timeout_ms"`
}

// TraceInfo answers it; the array holds OTLP JSON lines.
type TraceInfo struct {
	TraceID string   `json:"trace_id,omitempty"` // whole; "" where every trace was asked for
	Unasked []string `json:"unasked,omitempty"`  // nodes that belong to the trace, as far as is known, and did not answer
	LeftOff int      `json:"left_off,omitempty"` // spans that are kept but did not fit
}

// TraceOf asks a peer for the spans that it keeps of a trace of the link's tenant.
type TraceOf struct {
	ID string `json:"id"` // of a trace or a transfer, or the beginning of one
}

// TraceOfInfo answers it; the array holds OTLP JSON lines.
type TraceOfInfo struct {
	TraceID string   `json:"trace_id"`
	Peers   []string `json:"peers,omitempty"` // nodes that the spans name as the other side, at most MaxTracePeers
	LeftOff int      `json:"left_off,omitempty"`
}

const (
	// MaxTraceLines bounds the lines in one node's answer, in bytes: some thousand spans. Answers wait in a link's queue, which
	// transfers need too.
	MaxTraceLines = 2 << 20
	// MaxTracePeers bounds the nodes that one node names.
	MaxTracePeers = 1024
)

// Validate checks the fields.
func (q *TraceQuery) Validate() error {
	if q.ID != "" && q.ID != TraceLatest {
		if err := checkIDPrefix("trace", q.ID); err != nil {
			return err
		}
	}
	return CheckMillis("trace", "timeout_ms", q.TimeoutMillis)
}

// Validate checks the field.
func (q *TraceOf) Validate() error { return checkIDPrefix("trace_of", q.ID) }

// Validate checks what a peer claims.
func (i *TraceOfInfo) Validate() error {
	const op = "trace_of"
	if err := checkHex(op, "trace_id", i.TraceID, 16); err != nil {
		return err
	}
	if len(i.Peers) > MaxTracePeers {
		return fault.Invalid(op, "peers", "%d, allowed 0..%d", len(i.Peers), MaxTracePeers)
	}
	for _, p := range i.Peers {
		if err := CheckName(op, "peers", p); err != nil {
			return err
		}
	}
	if i.LeftOff < 0 {
		return fault.Invalid(op, "left_off", "%d, allowed 0 and more", i.LeftOff)
	}
	return nil
}

// checkIDPrefix refuses what is not the beginning of an id of 32 digits.
func checkIDPrefix(op, s string) error {
	ok := len(s) >= 1 && len(s) <= 32
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
	}
	if !ok {
		return fault.Invalid(op, "id", "%q, allowed 1..32 lower-case hex digits, an id or its beginning", clip(s, MaxName))
	}
	return nil
}
