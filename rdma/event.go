package rdma

import "github.com/kvxfer/kvxfer/internal/fault"

// EventKind tells the events of a provider apart.
type EventKind uint8

const (
	// EventCompletion ends an operation at its initiator.
	EventCompletion EventKind = 1
	// EventArrival tells a target that a WRITE is placed and visible.
	EventArrival EventKind = 2
	// EventDown tells either side that the session has ended by itself (peer lost, protocol violated). At an
	// initiator the completions of everything pending come before it. At a target it is no fence: windows stay as
	// they are until Fence or Close. It comes once, and not after Close.
	EventDown EventKind = 3
)

// Event is flat and small, so that polling a batch allocates nothing.
type Event struct {
	Kind    EventKind
	Status  fault.Code // completion: 0 is success. down: why
	Wrote   bool       // completion of a failed WRITE: the target's bytes may have been changed
	Session SessionID
	Op      uint64  // completion
	Bytes   uint64  // completion: bytes moved; arrival: bytes placed
	Key     Key     // arrival
	Tag     uint64  // arrival
	Took    Instant // arrival: from the operation's first frame to its last byte; 0 where the provider cannot tell
}
