package wire

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// RegisterRegion hands memory over; one file descriptor comes with the frame.
type RegisterRegion struct {
	Name string `json:"name"` // unique among the client's regions; 1..64 of [A-Za-z0-9_.-]
	ID   string `json:"id"`   // 32 hex digits, random, made when the memory was allocated
	Kind string `json:"kind"` // "memfd"
	Size uint64 `json:"size"` // bytes
}

// RegionInfo answers RegisterRegion.
type RegionInfo struct {
	Region     uint64 `json:"region"`
	MemoryKind string `json:"memory_kind"`
}

// DeregisterRegion takes a region back. Caches on it must be dropped first.
type DeregisterRegion struct {
	Region uint64 `json:"region"`
}

// RegisterCache declares that a region holds a KV cache, starting at its first byte.
type RegisterCache struct {
	Name      string        `json:"name"` // unique on the node; 1..64 of [A-Za-z0-9_.-]
	Region    uint64        `json:"region"`
	Model     string        `json:"model"`
	Revision  string        `json:"revision,omitempty"`
	Compat    string        `json:"compat,omitempty"` // the caller's compatibility string (quantisation, adapter, ...)
	Layout    layout.Layout `json:"layout"`
	NumBlocks uint32        `json:"num_blocks"`
}

// CacheInfo answers RegisterCache. The array lists the blocks that are served again after a re-registration.
type CacheInfo struct {
	Cache      uint64 `json:"cache"`
	BlockBytes uint64 `json:"block_bytes"` // of all layers together
}

// DropCache ends a cache.
type DropCache struct {
	Cache uint64 `json:"cache"`
}

// BlocksQuery asks for the state of all blocks of a cache.
type BlocksQuery struct {
	Cache uint64 `json:"cache"`
}

// BlocksInfo counts them; the array lists those that are not FREE.
type BlocksInfo struct {
	Total     uint32 `json:"total"`
	Leased    uint32 `json:"leased"`
	Committed uint32 `json:"committed"`
	Revoking  uint32 `json:"revoking"`
	Held      uint32 `json:"held"`
}

// Evict makes committed blocks FREE.
type Evict struct {
	Cache uint64 `json:"cache"`
}

// LeaseRequest asks for a lease on blocks of an own cache.
type LeaseRequest struct {
	Cache       uint64 `json:"cache"`
	Mode        string `json:"mode"` // "write"
	TTLMillis   int64  `json:"ttl_ms"`
	Traceparent string `json:"traceparent,omitempty"` // the client's own span; it also goes into the ticket
}

// LeaseInfo answers it.
type LeaseInfo struct {
	Lease      uint64 `json:"lease"`
	Ticket     string `json:"ticket"` // a capability: never log it
	Generation uint64 `json:"generation"`
}

// Revoke takes a lease back.
type Revoke struct {
	Lease uint64 `json:"lease"`
}

// PushRequest starts a transfer of own blocks to a ticket's lease. Its outcome is a TransferEvent.
type PushRequest struct {
	Cache         uint64 `json:"cache"`
	Ticket        string `json:"ticket"`
	TimeoutMillis int64  `json:"timeout_ms"`
	Layerwise     bool   `json:"layerwise"` // false: everything is ready now; PUSH_FINISH, with the notification, follows at once
	// Traceparent is what the call belongs to; absent, the ticket's context is taken. SpanID is the id that the
	// client gives its own span of this call (16 hex digits): the daemon's spans become its children.
	Traceparent string `json:"traceparent,omitempty"`
	SpanID      string `json:"span_id,omitempty"`
}

// PushInfo answers it, before the peer has been asked.
type PushInfo struct {
	Transfer   uint64 `json:"transfer"`
	TransferID string `json:"transfer_id"` // 32 hex digits, in traces and logs of both nodes
	TraceID    string `json:"trace_id"`    // of the trace that the transfer belongs to
	ParentID   string `json:"parent_id"`   // the parent for the client's span; absent: it is the root
	Sampled    bool   `json:"sampled"`
}

// PushFinish says that the last layer was handed over; the array is the notification.
type PushFinish struct {
	Transfer uint64 `json:"transfer"`
}

// PushCancel ends a transfer early.
type PushCancel struct {
	Transfer uint64 `json:"transfer"`
}

// LeaseEvent tells the owner that a lease has ended. Its blocks are fenced: COMMITTED when Error is absent, else FREE.
type LeaseEvent struct {
	Lease      uint64      `json:"lease"`
	TransferID string      `json:"transfer_id,omitempty"`
	Peer       string      `json:"peer,omitempty"`
	Provider   string      `json:"provider,omitempty"`
	Bytes      uint64      `json:"bytes"`
	Generation uint64      `json:"generation"`
	Error      *fault.Wire `json:"error,omitempty"`
}

// TransferEvent tells the source how its transfer ended.
type TransferEvent struct {
	Transfer   uint64      `json:"transfer"`
	TransferID string      `json:"transfer_id"`
	Peer       string      `json:"peer,omitempty"`
	Provider   string      `json:"provider,omitempty"`
	Reason     string      `json:"provider_reason,omitempty"`
	Blocks     uint32      `json:"blocks"`
	Bytes      uint64      `json:"bytes"`
	Released   bool        `json:"released"` // the source's blocks are reusable; false: a Released event follows
	FirstNanos int64       `json:"first_ns"` // from the request to the first posted byte, on the daemon's clock
	LastNanos  int64       `json:"last_ns"`  // from the request to the last completion
	BusyNanos  int64       `json:"busy_ns"`  // time with bytes in flight
	Error      *fault.Wire `json:"error,omitempty"`
}

// Released tells the source that blocks which were HELD when its transfer ended are reusable now.
type Released struct {
	Transfer uint64 `json:"transfer"`
}

// Spans carries finished spans of the client, which the daemon exports under the client's own ids.
type Spans struct {
	Spans []ClientSpan `json:"spans"`
}

// ClientSpan is one of them.
type ClientSpan struct {
	TraceID    string            `json:"trace_id"`
	SpanID     string            `json:"span_id"`
	ParentID   string            `json:"parent_id,omitempty"`
	Name       string            `json:"name"`
	StartNanos int64             `json:"start_unix_ns"`
	EndNanos   int64             `json:"end_unix_ns"`
	Attributes map[string]any    `json:"attributes,omitempty"`
	Events     []ClientSpanEvent `json:"events,omitempty"`
	Error      string            `json:"error,omitempty"`
}

// ClientSpanEvent is a moment inside a span.
type ClientSpanEvent struct {
	Name  string `json:"name"`
	Nanos int64  `json:"unix_ns"`
}

// Status describes the daemon to a client.
type Status struct {
	Node      string   `json:"node"`
	Epoch     string   `json:"epoch"`
	Version   string   `json:"version"`
	PeerAddr  string   `json:"peer_addr"`
	HTTPAddr  string   `json:"http_addr"`
	Providers []string `json:"providers"`
	Draining  bool     `json:"draining"`
	Registry  bool     `json:"registry_connected"`
	Nodes     []string `json:"nodes"`
	Clients   int      `json:"clients"`
	Leases    int      `json:"leases"`
	Transfers int      `json:"transfers"`
}
