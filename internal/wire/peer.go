package wire

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Bind claims a lease for a transfer. The first bind owns the lease.
type Bind struct {
	Lease           string        `json:"lease"`  // 32 hex digits, from the ticket
	Secret          []byte        `json:"secret"` // from the ticket; never logged
	Transfer        string        `json:"transfer"`
	Attempt         uint32        `json:"attempt"`
	Model           string        `json:"model"`
	Revision        string        `json:"revision"`
	Compat          string        `json:"compat"`
	Layout          layout.Layout `json:"layout"`
	Blocks          uint32        `json:"blocks"`
	RemainingMillis int64         `json:"remaining_ms"` // of the transfer's time; the owner's clock starts at receipt
	Traceparent     string        `json:"traceparent,omitempty"`
	Mode            string        `json:"mode,omitempty"`     // what the source means to do: "" is "write"; "read"
	Raw             bool          `json:"raw,omitempty"`      // the lease is an advertised region: no model, layout and blocks
	Instance        string        `json:"instance,omitempty"` // of the transfer's engine, for people
}

// Bound answers a bind; the array lists the target's blocks in lease order.
type Bound struct {
	Handle          uint64        `json:"handle"` // names the lease on this connection from now on
	Key             uint64        `json:"key"`    // the window
	Layout          layout.Layout `json:"layout"`
	NumBlocks       uint32        `json:"num_blocks"` // of the target's cache: block offsets depend on it
	RemainingMillis int64         `json:"remaining_ms"`
	Traceparent     string        `json:"traceparent,omitempty"`
	RegionBytes     uint64        `json:"region_bytes,omitempty"` // of an advertised region; it has no layout and no blocks
}

// Release says that a reader has all its bytes and asks whether the memory was held throughout: OK is the only
// validation of what it read. The array is the notification.
type Release struct {
	Handle uint64 `json:"handle"`
	Bytes  uint64 `json:"bytes"`
}

// Grant asks the owner of one rank for its part of an instance's lease; the array lists the blocks.
type Grant struct {
	Cache       string `json:"cache"`
	Instance    string `json:"instance"`
	InstanceKey []byte `json:"instance_key"` // never logged
	LeaseID     string `json:"lease_id"`     // of the whole lease
	Mode        string `json:"mode"`
	Readers     uint32 `json:"readers,omitempty"`
	TTLMillis   int64  `json:"ttl_ms"`
	Traceparent string `json:"traceparent,omitempty"`
}

// Granted answers it.
type Granted struct {
	Handle     uint64 `json:"handle"` // names the part on this connection
	Lease      string `json:"lease"`  // 32 hex digits
	Secret     []byte `json:"secret"` // never logged
	Generation uint64 `json:"generation"`
	Layers     uint32 `json:"layers"`
	Rank       uint32 `json:"rank"`
}

// GrantHandle names a part.
type GrantHandle struct {
	Handle uint64 `json:"handle"`
}

// GrantRevoke takes a part back; GRANT_ENDED follows when it is fenced.
type GrantRevoke struct {
	Handle uint64      `json:"handle"`
	Error  *fault.Wire `json:"error,omitempty"`
}

// GrantRenew moves a part's end.
type GrantRenew struct {
	Handle    uint64 `json:"handle"`
	TTLMillis int64  `json:"ttl_ms"`
}

// GrantEnded says that a part is over and fenced.
type GrantEnded struct {
	Handle     uint64      `json:"handle"`
	TransferID string      `json:"transfer_id,omitempty"`
	Peer       string      `json:"peer,omitempty"`
	Provider   string      `json:"provider,omitempty"`
	Bytes      uint64      `json:"bytes"`
	Error      *fault.Wire `json:"error,omitempty"`
}

// Claim asks the node that made an instance's lease whether a transfer may own it: the first one does, with all ranks.
type Claim struct {
	Handle   uint64 `json:"handle"`
	Claim    uint64 `json:"claim"` // comes back in CLAIMED
	Transfer string `json:"transfer"`
	Attempt  uint32 `json:"attempt"`
}

// Claimed answers it; without an error the transfer owns the lease.
type Claimed struct {
	Claim uint64      `json:"claim"`
	Error *fault.Wire `json:"error,omitempty"`
}

// Find asks a node how long a prefix of the keys in the array its caches hold.
type Find struct {
	Model    string        `json:"model"`
	Revision string        `json:"revision,omitempty"`
	Compat   string        `json:"compat,omitempty"`
	Layout   layout.Layout `json:"layout"`
	KeyBytes uint32        `json:"key_bytes"`
}

// FindInfo answers it; Node, Epoch and Addr of a holder are the answering node's.
type FindInfo struct {
	Holders []Holder `json:"holders"`
}

// OpenBlocks asks for a read lease on published blocks by their keys.
type OpenBlocks struct {
	Find
	Cache     string `json:"cache"`
	TTLMillis int64  `json:"ttl_ms"`
}

// OpenedBlocks answers it.
type OpenedBlocks struct {
	Lease  string `json:"lease"`
	Secret []byte `json:"secret"` // never logged
	Blocks uint32 `json:"blocks"`
}

// Fin says that every piece is placed as far as the source knows; the array is the notification. A source whose
// transfer has ended never sends it.
type Fin struct {
	Handle uint64 `json:"handle"`
	Pieces uint64 `json:"pieces"` // distinct (layer, block) pieces in all
}

// Abort ends a transfer from the source's side: nothing of it is in flight and nothing more will be posted.
type Abort struct {
	Handle uint64      `json:"handle"`
	Error  *fault.Wire `json:"error,omitempty"`
}

// Done tells the source that its transfer is COMMITTED.
type Done struct {
	Handle uint64 `json:"handle"`
	Bytes  uint64 `json:"bytes"`
}

// Ended tells the source that the lease was revoked, expired or refused in the middle.
type Ended struct {
	Handle uint64      `json:"handle"`
	Error  *fault.Wire `json:"error"`
}
