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
}

// Bound answers a bind; the array lists the target's blocks in lease order.
type Bound struct {
	Handle          uint64        `json:"handle"` // names the lease on this connection from now on
	Key             uint64        `json:"key"`    // the window
	Layout          layout.Layout `json:"layout"`
	NumBlocks       uint32        `json:"num_blocks"` // of the target's cache: block offsets depend on it
	RemainingMillis int64         `json:"remaining_ms"`
	Traceparent     string        `json:"traceparent,omitempty"`
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
