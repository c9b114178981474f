package wire

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// RegisterRegion hands memory over; one file descriptor comes with the frame.
type RegisterRegion struct {
	Name string `json:"name"`           // unique among the client's regions; 1..64 of [A-Za-z0-9_.-]
	ID   string `json:"id"`             // 32 hex digits, random, made when the memory was allocated
	Kind string `json:"kind"`           // "memfd", or "process": the descriptor is the client's own /proc/self/mem
	Size uint64 `json:"size"`           // bytes
	Addr uint64 `json:"addr,omitempty"` // "process": where the memory begins in the client's address space
	// Offset is where the region begins in a "memfd".
	Offset uint64 `json:"offset,omitempty"`
}

// RegionInfo answers RegisterRegion.
type RegionInfo struct {
	Region     uint64 `json:"region"`
	MemoryKind string `json:"memory_kind"`
	// Guarantee is "full", or "live-client-only": what is promised of the memory ends with the client's process.
	Guarantee string `json:"guarantee,omitempty"`
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
	// Instance is the engine whose rank this is (layout.tp_rank); whoever shows the same key may lease its blocks.
	Instance    string `json:"instance,omitempty"`
	InstanceKey []byte `json:"instance_key,omitempty"` // 16..64 bytes, a secret of the engine's processes; never logged
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

// BlocksInfo counts them; the array holds a BlockEntry for each that is not FREE.
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

// Publish makes blocks that the engine computed itself COMMITTED under keys. The array holds the block ids (u32), then a
// key of KeyBytes for each.
type Publish struct {
	Cache    uint64 `json:"cache"`
	KeyBytes uint32 `json:"key_bytes"`
}

// PublishInfo answers it.
type PublishInfo struct {
	Generation uint64 `json:"generation"` // under which the blocks are COMMITTED
}

// Lookup asks who holds the longest prefix of the keys in the array, KeyBytes each.
type Lookup struct {
	Model         string        `json:"model"`
	Revision      string        `json:"revision,omitempty"`
	Compat        string        `json:"compat,omitempty"`
	Layout        layout.Layout `json:"layout"` // of the cache that the blocks would be read into
	KeyBytes      uint32        `json:"key_bytes"`
	LocalOnly     bool          `json:"local_only,omitempty"` // ask no other node
	TimeoutMillis int64         `json:"timeout_ms"`
}

// LookupInfo answers it: the holders of at least one block, the longest prefix first.
type LookupInfo struct {
	Holders []Holder `json:"holders"`
	// Unasked lists nodes that did not answer in time: what they hold is unknown.
	Unasked []string `json:"unasked,omitempty"`
}

// Holder is a cache that has the first Blocks keys.
type Holder struct {
	Node   string `json:"node"`
	Epoch  string `json:"epoch"`
	Addr   string `json:"addr"`
	Cache  string `json:"cache"`
	Blocks uint32 `json:"blocks"`
}

// Open asks a holder for a read lease on the blocks that have the keys in the array. The holder's node grants it: to
// publish is to permit reading.
type Open struct {
	Node          string        `json:"node"`
	Epoch         string        `json:"epoch"`
	Addr          string        `json:"addr"`
	Cache         string        `json:"cache"`
	Model         string        `json:"model"`
	Revision      string        `json:"revision,omitempty"`
	Compat        string        `json:"compat,omitempty"`
	Layout        layout.Layout `json:"layout"`
	KeyBytes      uint32        `json:"key_bytes"`
	TTLMillis     int64         `json:"ttl_ms"`
	TimeoutMillis int64         `json:"timeout_ms"`
}

// OpenInfo answers it.
type OpenInfo struct {
	Ticket string `json:"ticket"` // a capability: never log it
}

// LeaseRequest asks for a lease on blocks of an own cache, or on those of every rank of an instance.
type LeaseRequest struct {
	Cache       uint64 `json:"cache,omitempty"` // 0: of the instance
	Instance    string `json:"instance,omitempty"`
	InstanceKey []byte `json:"instance_key,omitempty"` // never logged
	Mode        string `json:"mode"`                   // "write" or "read"
	Readers     uint32 `json:"readers,omitempty"`      // "read": how many transfers may bind it; 0: 1
	TTLMillis   int64  `json:"ttl_ms"`
	Traceparent string `json:"traceparent,omitempty"` // the client's own span; it also goes into the ticket
}

// LeaseInfo answers it.
type LeaseInfo struct {
	Lease      uint64 `json:"lease"`
	Ticket     string `json:"ticket"` // a capability: never log it
	Generation uint64 `json:"generation"`
	LeaseID    string `json:"lease_id,omitempty"` // 32 hex digits, in traces and logs; of an instance's lease the same on every rank
	Ranks      uint32 `json:"ranks,omitempty"`    // of an instance's lease
}

// Renew moves the end of a lease to TTLMillis from now.
type Renew struct {
	Lease     uint64 `json:"lease"`
	TTLMillis int64  `json:"ttl_ms"`
}

// Advertise opens parts of a raw region to whoever gets the ticket: it is a lease. The array lists the parts as
// {offset u64, length u64}; none: the whole region.
type Advertise struct {
	Region      uint64 `json:"region"`
	Mode        string `json:"mode"`           // "write" or "read": what the peers may do
	Uses        uint32 `json:"uses,omitempty"` // how many transfers may bind it; 0: any number
	TTLMillis   int64  `json:"ttl_ms"`
	Traceparent string `json:"traceparent,omitempty"`
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
	Layerwise     bool   `json:"layerwise"` // false: every layer is ready now and no PUSH_LAYER follows; without Finish PUSH_FINISH does
	// Finish stands for the PUSH_FINISH of a push that is not layer-wise, and Notification is what that would carry. A daemon
	// that knows the field answers Finished.
	Finish       bool   `json:"finish,omitempty"`
	Notification []byte `json:"notification,omitempty"`
	// Traceparent is what the call belongs to; absent, the ticket's context is taken. SpanID is the id that the
	// client gives its own span of this call (16 hex digits): the daemon's spans become its children.
	Traceparent string `json:"traceparent,omitempty"`
	SpanID      string `json:"span_id,omitempty"`
	TransferIdentity
}

// TransferIdentity names a transfer that the caller repeats, or that several ranks of an engine make together.
type TransferIdentity struct {
	TransferID string `json:"transfer_id,omitempty"` // 32 hex digits; "": the daemon chooses
	Attempt    uint32 `json:"attempt,omitempty"`     // 0: 1. A later attempt needs a lease of its own and a higher number
	Instance   string `json:"instance,omitempty"`    // of the caller
	Provider   string `json:"provider,omitempty"`    // the only one that may be used; "": the best that reaches the peer
}

// PullRequest starts a transfer of a read lease's blocks into own blocks, which are LEASED meanwhile.
type PullRequest struct {
	Cache         uint64 `json:"cache"`
	Ticket        string `json:"ticket"`
	TimeoutMillis int64  `json:"timeout_ms"`
	Traceparent   string `json:"traceparent,omitempty"`
	SpanID        string `json:"span_id,omitempty"`
	Notification  []byte `json:"notification,omitempty"` // for the source, with the RELEASE
	TransferIdentity
}

// ScatterRequest starts a transfer between an own region and an advertised one, range by range.
type ScatterRequest struct {
	Region        uint64 `json:"region"`
	Mode          string `json:"mode"` // "write": own memory to the peer's; "read": the reverse
	Ticket        string `json:"ticket"`
	TimeoutMillis int64  `json:"timeout_ms"`
	Traceparent   string `json:"traceparent,omitempty"`
	SpanID        string `json:"span_id,omitempty"`
	Notification  []byte `json:"notification,omitempty"` // for the owner, when the data is visible or was held throughout
	TransferIdentity
}

// PushInfo answers it, before the peer has been asked.
type PushInfo struct {
	Transfer   uint64 `json:"transfer"`
	TransferID string `json:"transfer_id"` // 32 hex digits, in traces and logs of both nodes
	TraceID    string `json:"trace_id"`    // of the trace that the transfer belongs to
	ParentID   string `json:"parent_id"`   // the parent for the client's span; empty: it is the root
	Sampled    bool   `json:"sampled"`
	Finished   bool   `json:"finished,omitempty"` // the request's Finish was taken: no PUSH_FINISH is to follow
}

// PushFinish says that the last layer was handed over; the array is the notification.
type PushFinish struct {
	Transfer uint64 `json:"transfer"`
}

// PushCancel ends a transfer early.
type PushCancel struct {
	Transfer uint64 `json:"transfer"`
}

// HolderEvent tells the owner that one transfer under a read lease or an advertised region is over and fenced.
type HolderEvent struct {
	Lease      uint64      `json:"lease"`
	TransferID string      `json:"transfer_id"`
	Peer       string      `json:"peer"`
	Provider   string      `json:"provider"`
	Bytes      uint64      `json:"bytes"`
	Guarantee  string      `json:"guarantee,omitempty"`
	Error      *fault.Wire `json:"error,omitempty"`
}

// GrantedEvent tells a rank's client that its engine leased blocks of its cache, asked by another process of it. The
// lease's other events follow as if the client had asked itself.
type GrantedEvent struct {
	Lease      uint64 `json:"lease"`
	Cache      uint64 `json:"cache"`
	LeaseID    string `json:"lease_id"` // the same on every rank
	Mode       string `json:"mode"`
	Generation uint64 `json:"generation"`
}

// LeaseEvent tells the owner that a lease has ended. Its blocks are fenced: COMMITTED when Error is absent, else FREE.
type LeaseEvent struct {
	Lease      uint64      `json:"lease"`
	TransferID string      `json:"transfer_id,omitempty"`
	Peer       string      `json:"peer,omitempty"`
	Provider   string      `json:"provider,omitempty"`
	Bytes      uint64      `json:"bytes"`
	Generation uint64      `json:"generation"`
	Guarantee  string      `json:"guarantee,omitempty"`
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
	Released   bool        `json:"released"`             // the source's blocks are reusable; false: a Released event follows
	FirstNanos int64       `json:"first_ns"`             // from the request to the first posted byte, on the daemon's clock
	LastNanos  int64       `json:"last_ns"`              // from the request to the last completion
	BusyNanos  int64       `json:"busy_ns"`              // time with bytes in flight
	Generation uint64      `json:"generation,omitempty"` // of a pull without error: under which the blocks are COMMITTED
	Guarantee  string      `json:"guarantee,omitempty"`  // "live-client-only" where the memory is of that kind
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
	// Absent are the providers that the node would have and cannot use.
	Absent []Absence `json:"absent,omitempty"`
	// Unregistered are providers that refused memory of clients which others took: its transfers go over those.
	Unregistered []Unregistered `json:"unregistered,omitempty"`
}
