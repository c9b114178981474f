package rdma

import (
	"context"
)

// Instant is a time in nanoseconds on the node's own monotonic clock. It means nothing on another node.
type Instant int64

// Clock is the node's monotonic clock.
type Clock interface{ Now() Instant }

// SessionID names a session inside one provider of one node; the node chooses it and never reuses it.
type SessionID uint64

// Key names a window inside its session. Keys are never reused within a session. A key is no secret: it confers
// nothing outside its session, and sessions prove themselves by secrets of their own.
type Key uint64

// Access says what a window permits. A window permits one of them.
type Access uint8

const (
	AccessWrite Access = 1 // the peer may write into the window
	AccessRead  Access = 2 // the peer may read from the window
)

// Caps says what a provider can do.
type Caps struct {
	Kinds          []MemoryKind // memory it can register
	Write, Read    bool
	ChecksDeadline bool   // compares Window.Deadline for every chunk it places
	ChecksBounds   bool   // compares Window.Bounds for every range; false: only the region is protected
	MaxRanges      int    // ranges in one Op
	MaxOpBytes     uint64 // bytes in one Op
	MaxInFlight    int    // operations posted and not completed, a session
	MaxInFlightLen uint64 // bytes posted and not completed, a session; a larger operation is taken when it is alone
}

// Provider is one fabric inside one node. All methods are safe for concurrent use, those of its regions and sessions
// too. Closing what is closed gives nil; using it gives Closed, except that Fence gives nil.
type Provider interface {
	Name() string
	Caps() Caps

	// Register makes memory usable as the local side of operations and as the object of windows. It refuses kinds
	// that Caps does not list with NotSupported.
	Register(m Memory) (Region, error)

	// Accept makes the target side of a session. The returned parameters are opaque bytes with the session's
	// secret: they go to the peer over the control connection and nowhere else.
	Accept(id SessionID) (Target, []byte, error)

	// Connect makes the initiator side from the peer's address and the parameters that its Accept returned. It
	// returns when the session can carry operations, or with PeerUnreachable when ctx ends first.
	Connect(ctx context.Context, id SessionID, addr string, params []byte) (Initiator, error)

	// Poll moves up to len(dst) events into dst and returns their number. It never blocks. Events of one
	// operation or window are in order; nothing else is.
	Poll(dst []Event) int

	// Wait returns nil as soon as Poll would return something, or ctx's error, or Closed when the provider is closed
	// and nothing is due. One goroutine waits at a time.
	Wait(ctx context.Context) error

	// Close ends every session as its Close does. Events that are due can still be polled afterwards.
	Close() error
}

// Region is registered memory.
type Region interface {
	Memory() Memory
	// Close deregisters. It fences every window on the region and cancels every operation that names it, and
	// returns nil only when no byte of the memory can be touched any more; it does not wait for a peer. The
	// operations end with Cancelled; those of peers that arrive later, with StaleKey. The sessions go on.
	Close() error
}

// Window is what a target grants.
type Window struct {
	Region   Region
	Access   Access
	Bounds   Bounds  // required; the region's own end holds besides it
	Deadline Instant // 0: none
}

// Target is the side of a session whose memory is reached.
type Target interface {
	// Grant opens a window. The key is unknown to the peer until somebody tells it.
	Grant(w Window) (Key, error)

	// Extend replaces a window's deadline; StaleKey when it is fenced.
	Extend(k Key, deadline Instant) error

	// Fence ends a window: after nil no byte lands in it, and no READ of what it holds from then on succeeds. It waits
	// at most for the system call or the device operation in progress, never for the peer (shm: for a peer process that is
	// reading, but no longer than a short bound). An unknown or fenced key gives nil: it is fenced.
	// On an error the memory must not be reused (quarantine).
	Fence(k Key) error

	// Close fences all windows and ends the session.
	Close() error
}

// OpKind is the direction of an operation, seen from the initiator.
type OpKind uint8

const (
	OpWrite OpKind = 1 // local region -> remote window
	OpRead  OpKind = 2 // remote window -> local region
)

// Op is one operation: a scatter list between one local region and one remote window.
type Op struct {
	Kind   OpKind
	ID     uint64 // the initiator's own; unique among its session's pending operations; comes back in the completion
	Local  Region
	Remote Key
	Ranges []Range // the provider copies it before Post returns; ranges of length 0 are allowed and move nothing
	Tag    uint64  // of a WRITE: reported with the arrival at the target
}

// Bytes is the sum of an operation's range lengths.
func (o *Op) Bytes() uint64 {
	var n uint64
	for i := range o.Ranges {
		n += o.Ranges[i].Len
	}
	return n
}

// Initiator is the side of a session that posts.
type Initiator interface {
	// Post takes as many of ops as its window has room for, in order, and returns how many. n < len(ops) with a nil
	// error is back-pressure: post the rest after completions. An error says that ops[n] is invalid (InvalidArgument,
	// also above Caps.MaxRanges or MaxOpBytes; OutOfBounds for the local side; NotSupported) or the session has ended
	// (PeerLost by itself, Closed by Close); ops[:n] were taken.
	Post(ops []Op) (n int, err error)

	// Cancel ends operations early: each still pending one completes with Cancelled, at once as far as the local
	// memory is concerned: the completion does not wait for the peer. Unknown ids are ignored. The session goes on.
	Cancel(ids ...uint64)

	// Close ends the session: everything pending completes with Closed.
	Close() error
}
