package wire

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// What INSPECT can list.
const (
	InspectNodes     = "nodes"     // NodeRow: the directory's nodes
	InspectCaches    = "caches"    // CacheRow: the directory's caches
	InspectBlocks    = "blocks"    // BlockRow: of one own cache
	InspectLeases    = "leases"    // LeaseRow: given by this node
	InspectTransfers = "transfers" // TransferRow: begun on this node
)

const (
	// DefaultInspectRows is how many rows an answer has at most where the request names no limit.
	DefaultInspectRows = 1000
	// MaxInspectRows bounds the rows of one answer; the next begins behind its cursor.
	MaxInspectRows = 10_000
	// maxCursor bounds a cursor, in bytes. Names of a tenant, a node and a cache fit.
	maxCursor = 512
)

var inspectWhats = []string{InspectNodes, InspectCaches, InspectBlocks, InspectLeases, InspectTransfers}

// Inspect asks for rows of what a daemon knows, from a cursor on.
type Inspect struct {
	What  string `json:"what"`
	After string `json:"after,omitempty"` // Next of the answer before
	Limit uint32 `json:"limit,omitempty"` // rows, 1..10000; 0: 1000
	// AllTenants lists other tenants' caches, leases and transfers too; for root and the daemon's own user.
	AllTenants bool   `json:"all_tenants,omitempty"`
	Node       string `json:"node,omitempty"`   // caches: of this node alone
	Cache      string `json:"cache,omitempty"`  // blocks: which; leases and transfers: of this one alone. With all_tenants also TENANT/NAME
	ID         string `json:"id,omitempty"`     // leases, transfers: the beginning of an id; leases: or of their transfer's
	State      string `json:"state,omitempty"`  // blocks: in this state alone, FREE ones too
	Ended      bool   `json:"ended,omitempty"`  // transfers: also the last ones that are over
	Detail     bool   `json:"detail,omitempty"` // leases, transfers: layers, holders
}

// InspectInfo answers it; the array is a JSON array of rows.
type InspectInfo struct {
	Next string `json:"next,omitempty"` // the cursor of the next rows; "": there are no more
	// Stale: the registry is away, so nodes and caches are as they were when it was last heard.
	Stale  bool         `json:"stale,omitempty"`
	Counts *BlockCounts `json:"counts,omitempty"` // blocks, without a cursor: of the whole cache
}

// BlockCounts says how many blocks of a cache are in each state. A block that is HELD counts in its own state too.
type BlockCounts struct {
	Total     uint32 `json:"total"`
	Free      uint32 `json:"free"`
	Leased    uint32 `json:"leased"`
	Committed uint32 `json:"committed"`
	Revoking  uint32 `json:"revoking"`
	Held      uint32 `json:"held"`
}

// NodeRow is one node of the directory.
type NodeRow struct {
	Node        string   `json:"node"`
	Own         bool     `json:"own,omitempty"` // the daemon that answers
	Epoch       string   `json:"epoch"`
	PeerAddr    string   `json:"peer_addr"`
	HTTPAddr    string   `json:"http_addr,omitempty"`
	Version     string   `json:"version,omitempty"`
	MinProtocol int      `json:"min_protocol"`
	MaxProtocol int      `json:"max_protocol"`
	Providers   []string `json:"providers,omitempty"`
	MemoryKinds []string `json:"memory_kinds,omitempty"`
	Draining    bool     `json:"draining,omitempty"`
	StartedMs   int64    `json:"started_unix_ms,omitempty"` // by that node's clock
	// ToldMs is how long ago the directory last told of the node, in milliseconds by the answering daemon's clock. It is no
	// sign of life: a node that gives none is taken out of the list.
	ToldMs int64 `json:"told_ms"`
}

// CacheRow is one cache of the directory.
type CacheRow struct {
	Node       string          `json:"node"`
	Tenant     string          `json:"tenant"`
	Cache      string          `json:"cache"`
	Model      string          `json:"model"`
	Revision   string          `json:"revision,omitempty"`
	Compat     string          `json:"compat,omitempty"`
	Layout     json.RawMessage `json:"layout"`              // the layout object
	LayoutText string          `json:"layout_text"`         // the same for people
	MemoryKind string          `json:"memory_kind"`         // "host", "process"
	NUMANode   *int            `json:"numa_node,omitempty"` // where most of the memory lies; absent: unknown, or a host with one
	Blocks     int             `json:"blocks"`              // how many it has
	Bytes      int64           `json:"bytes"`               // of all of them
	Instance   string          `json:"instance,omitempty"`
	Rank       int             `json:"rank,omitempty"`
	Ranks      int             `json:"ranks,omitempty"`
}

// BlockRow is one block of a cache.
type BlockRow struct {
	Block      uint32 `json:"block"`
	State      string `json:"state"` // FREE, LEASED, COMMITTED, REVOKING
	Generation uint64 `json:"generation,omitempty"`
	Lease      string `json:"lease,omitempty"` // the lease's id while LEASED or REVOKING; of a pull its own one
	Holds      uint32 `json:"holds,omitempty"` // pushes and read leases that have it read
	Key        string `json:"key,omitempty"`   // in hex
}

// LeaseRow is one lease that this node has given, or asked other nodes for.
type LeaseRow struct {
	LeaseID     string      `json:"lease_id"`
	Kind        string      `json:"kind"`              // write, read, advertise, instance
	Part        string      `json:"part_of,omitempty"` // the instance's lease that it is a part of
	State       string      `json:"state"`             // GRANTED, BOUND, FENCING, OPEN, ENDING
	Tenant      string      `json:"tenant"`
	Memory      string      `json:"memory"` // the cache or region; of an instance its name
	Mode        string      `json:"mode"`   // write or read
	Blocks      int         `json:"blocks"`
	Generation  uint64      `json:"generation,omitempty"`
	Peer        string      `json:"peer,omitempty"`
	TransferID  string      `json:"transfer_id,omitempty"`
	TraceID     string      `json:"trace_id,omitempty"`
	Provider    string      `json:"provider,omitempty"`
	Pieces      uint64      `json:"pieces"`            // in all; 0 where they are not counted
	Arrived     uint64      `json:"arrived"`           // of them
	Bytes       uint64      `json:"bytes"`             // that arrived, or by readers' words were read
	RemainingMs int64       `json:"remaining_ms"`      // until it ends by itself; below 0: its end is being worked on
	AgeMs       int64       `json:"age_ms"`            // since it was granted
	MovedMs     int64       `json:"moved_ms"`          // since its state last changed or bytes last arrived
	Process     string      `json:"process,omitempty"` // of the client
	Pid         int         `json:"pid,omitempty"`
	Waiting     *Waiting    `json:"waiting,omitempty"`
	Uses        uint64      `json:"uses,omitempty"`    // of those that several may bind: how many may; 0: any number
	Used        uint64      `json:"used,omitempty"`    // and have
	Holders     []HolderRow `json:"holders,omitempty"` // with detail: who holds it now
	Missing     []LayerGap  `json:"missing,omitempty"` // with detail: what has not arrived
}

// HolderRow is one transfer under a lease that several may share.
type HolderRow struct {
	TransferID string `json:"transfer_id"`
	Peer       string `json:"peer"`
	Provider   string `json:"provider"`
	State      string `json:"state"`    // BOUND, FENCING
	MovedMs    int64  `json:"moved_ms"` // since it was bound, bytes last arrived, or its fence began
}

// TransferRow is one transfer that a client of this node has begun.
type TransferRow struct {
	TransferID  string      `json:"transfer_id"`
	Attempt     uint32      `json:"attempt"`
	Kind        string      `json:"kind"` // push, pull, scatter
	Mode        string      `json:"mode"` // write or read
	State       string      `json:"state"`
	Tenant      string      `json:"tenant"`
	Memory      string      `json:"memory"` // the own cache or region
	Blocks      int         `json:"blocks"`
	Peer        string      `json:"peer"`
	PeerAddr    string      `json:"peer_addr"` // of the ticket
	LeaseID     string      `json:"lease_id"`  // at the peer
	TraceID     string      `json:"trace_id"`
	Instance    string      `json:"instance,omitempty"`
	Provider    string      `json:"provider,omitempty"`
	Reason      string      `json:"provider_reason,omitempty"` // why that one
	Pieces      uint64      `json:"pieces"`                    // in all
	HandedOver  uint64      `json:"handed_over"`               // of them, by the client
	Placed      uint64      `json:"placed"`                    // whose placement is confirmed
	Bytes       uint64      `json:"bytes"`                     // of those
	Outstanding uint64      `json:"outstanding"`               // pieces that are queued or posted
	Operations  int         `json:"operations,omitempty"`      // posted to the provider and not completed
	Queued      int         `json:"queued,omitempty"`          // parts that wait for the provider's window
	Depth       int         `json:"depth,omitempty"`           // operations of all transfers on the link
	RemainingMs int64       `json:"remaining_ms"`              // until its deadline; 0 when it is over
	AgeMs       int64       `json:"age_ms"`                    // since the request; of one that is over: how long it took
	MovedMs     int64       `json:"moved_ms"`                  // since anything last moved it
	BusyMs      int64       `json:"busy_ms"`                   // with bytes in flight
	EndedMs     int64       `json:"ended_ms,omitempty"`        // how long ago it ended
	Process     string      `json:"process,omitempty"`
	Pid         int         `json:"pid,omitempty"`
	Result      string      `json:"result,omitempty"` // DONE, or the error's name
	Error       *fault.Wire `json:"error,omitempty"`
	Waiting     *Waiting    `json:"waiting,omitempty"`
	Missing     []LayerGap  `json:"missing,omitempty"` // with detail: what the client has not handed over
}

// What a lease or transfer can wait for.
const (
	WaitLink       = "link"       // the way to the peer
	WaitBind       = "bind"       // the peer's answer to BIND
	WaitClient     = "client"     // this node's client, to hand pieces over or to finish
	WaitProvider   = "provider"   // completions of posted operations
	WaitDone       = "done"       // the peer's DONE: it fences and commits
	WaitRelease    = "release"    // the peer's answer to RELEASE: it fences and says whether it held its memory
	WaitReason     = "reason"     // the peer's word on why its window vanished
	WaitSource     = "source"     // a transfer to bind the lease
	WaitPieces     = "pieces"     // the source's bytes
	WaitFin        = "fin"        // the source's FIN: all pieces are there
	WaitHolder     = "holder"     // those who read or write under it
	WaitFence      = "fence"      // the provider's fence of a window
	WaitAsker      = "asker"      // the node that made the instance's lease, to say who owns it
	WaitParts      = "parts"      // ranks of the instance's lease
	WaitSettlement = "settlement" // this node, to write the end down and tell it
)

// Waiting says what something that is not over waits for.
type Waiting struct {
	For  string `json:"for"`
	Text string `json:"text"` // for people
	Ms   int64  `json:"ms"`   // for how long
	Peer string `json:"peer,omitempty"`
	Addr string `json:"addr,omitempty"` // link: that is dialled
}

// LayerGap is how many pieces of a layer are missing.
type LayerGap struct {
	Layer  uint32 `json:"layer"`
	Pieces uint32 `json:"pieces"`
}

// Drain asks the daemon to grant and start nothing any more; what runs goes on.
type Drain struct {
	Wait          bool  `json:"wait,omitempty"` // answer when nothing is left, or after TimeoutMillis
	TimeoutMillis int64 `json:"timeout_ms,omitempty"`
}

// DrainInfo answers it: what is left.
type DrainInfo struct {
	Leases    int `json:"leases"`
	Transfers int `json:"transfers"`
	Clients   int `json:"clients"` // attached; they do not hold a drain up
}

// LogLevel sets what the daemon logs.
type LogLevel struct {
	Level string `json:"level,omitempty"` // debug, info, warn, error; "": only ask
}

// LogLevelInfo answers it.
type LogLevelInfo struct {
	Level string `json:"level"`
	Was   string `json:"was"`
}

// LogLevels are the levels, the most talkative first.
var LogLevels = []string{"debug", "info", "warn", "error"}

// Validate checks the fields; whether a cache is there is known only to the node.
func (r *Inspect) Validate() error {
	const op = "inspect"
	if !slices.Contains(inspectWhats, r.What) {
		return fault.Invalid(op, "what", "%q, allowed %s", clip(r.What, MaxName), strings.Join(inspectWhats, ", "))
	}
	if r.Limit > MaxInspectRows {
		return fault.Invalid(op, "limit", "%d, allowed 1..%d, 0: %d", r.Limit, MaxInspectRows, DefaultInspectRows)
	}
	if len(r.After) > maxCursor {
		return fault.Invalid(op, "after", "%d bytes, allowed is the next of an answer", len(r.After))
	}
	for _, f := range [...]struct{ name, v string }{{"node", r.Node}, {"cache", r.Cache}} {
		if f.v == "" {
			continue
		}
		_, v, two := strings.Cut(f.v, "/")
		if !two || f.name == "node" {
			v = f.v
		}
		if err := CheckName(op, f.name, v); err != nil {
			return err
		}
	}
	if r.What == InspectBlocks && r.Cache == "" {
		return fault.Invalid(op, "cache", "it is empty, allowed is the name of a cache on this node")
	}
	if len(r.ID) > 32 || strings.Trim(r.ID, "0123456789abcdef") != "" {
		return fault.Invalid(op, "id", "%q, allowed the beginning of 32 lower-case hex digits", clip(r.ID, MaxName))
	}
	if _, ok := blockStates[r.State]; !ok && r.State != "" {
		return fault.Invalid(op, "state", "%q, allowed FREE, LEASED, COMMITTED, REVOKING, HELD", clip(r.State, MaxName))
	}
	return nil
}

// blockStates are the states that BLOCKS can be asked for.
var blockStates = map[string]struct{}{"FREE": {}, "LEASED": {}, "COMMITTED": {}, "REVOKING": {}, "HELD": {}}

// Rows is the limit in force.
func (r *Inspect) Rows() int {
	if r.Limit == 0 {
		return DefaultInspectRows
	}
	return int(r.Limit)
}

// Validate checks the fields.
func (r *Drain) Validate() error {
	if !r.Wait {
		return nil
	}
	return CheckMillis("drain", "timeout_ms", r.TimeoutMillis)
}

// Validate checks the fields.
func (r *LogLevel) Validate() error {
	if r.Level != "" && !slices.Contains(LogLevels, r.Level) {
		return fault.Invalid("log_level", "level", "%q, allowed %s", clip(r.Level, MaxName), strings.Join(LogLevels, ", "))
	}
	return nil
}

// PackRows makes the array of an answer to INSPECT.
func PackRows[T any](rows []T) ([]byte, error) {
	if len(rows) == 0 {
		return []byte("[]"), nil
	}
	raw, err := json.Marshal(rows)
	return raw, fault.Wrap(fault.Internal, "inspect", err)
}

// Rows reads the array of an answer to INSPECT. Fields that this build does not know are ignored.
func Rows[T any](array []byte) ([]T, error) {
	var rows []T
	if err := json.Unmarshal(array, &rows); err != nil {
		return nil, violation("rows", "they are no JSON array of rows: %v", err)
	}
	return rows, nil
}
