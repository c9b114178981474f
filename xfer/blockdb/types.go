package blockdb

import "fmt"

// CacheID is the random id that a client gives its memory when it allocates it.
type CacheID [16]byte

// LeaseID is the random id of a lease.
type LeaseID [16]byte

// State of a block. The numbers are persisted and never reused.
type State uint8

// The states. A FREE block has no record.
const (
	Free      State = 0
	Leased    State = 1
	Committed State = 2
	Revoking  State = 3
)

func (s State) String() string {
	switch s {
	case Free:
		return "FREE"
	case Leased:
		return "LEASED"
	case Committed:
		return "COMMITTED"
	case Revoking:
		return "REVOKING"
	}
	return fmt.Sprintf("State(%d)", uint8(s))
}

// Kind of a lease. Read leases do not change what a block holds, so they are not in the log.
type Kind uint8

// KindWrite lets a peer write into the blocks.
const KindWrite Kind = 1

// Outcome says how a lease ended. The numbers are persisted and never reused.
type Outcome uint8

// The outcomes.
const (
	OutcomeCommitted Outcome = 1 // all pieces and the source's FIN arrived
	OutcomeFreed     Outcome = 2 // ended without a result, fenced
	OutcomeRevoked   Outcome = 3 // taken back by its owner, fenced
	OutcomeTorn      Outcome = 4 // open when the daemon died; found by the next start
)

func (o Outcome) String() string {
	switch o {
	case OutcomeCommitted:
		return "COMMITTED"
	case OutcomeFreed:
		return "FREED"
	case OutcomeRevoked:
		return "REVOKED"
	case OutcomeTorn:
		return "TORN"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Binding ties a cache's metadata to one memory object of one boot.
type Binding struct {
	BootID   string // must be the database's
	Dev, Ino uint64 // the memfd's st_dev and st_ino
	CacheID  CacheID
}

// AttachSpec describes the cache that a client registers.
type AttachSpec struct {
	Name         string // 1 to MaxStringBytes bytes
	Binding      Binding
	NumBlocks    uint32 // 1 to MaxBlocks
	LayoutDigest [32]byte
	Model        string // at most MaxStringBytes bytes
}

// Vouch is one block whose content the owner still stands for, by the generation under which it got it.
type Vouch struct {
	Block      uint32
	Generation uint64
}

// LeaseRecord is what a lease is granted with.
type LeaseRecord struct {
	LeaseID    LeaseID
	Kind       Kind
	Blocks     []uint32 // distinct; copied
	TransferID string
	Peer       string
	TraceID    [16]byte
}

// CommitRecord says how a lease was completed.
type CommitRecord struct {
	TransferID string   // replaces the lease's where not empty
	Peer       string   // replaces the lease's where not empty
	Keys       [][]byte // nil, or one content key a block in the lease's order, at most MaxKeyBytes each; copied
	Bytes      uint64
	TraceID    [16]byte // replaces the lease's where not zero
}

// Record is one block as the mirror knows it.
type Record struct {
	Block      uint32
	State      State
	Generation uint64  // 0 for FREE
	Lease      LeaseID // set while LEASED or REVOKING
	Key        []byte  // of a COMMITTED block, empty is none; not to be changed
}

// Lease is one open lease.
type Lease struct {
	ID              LeaseID
	Cache           CacheID
	Kind            Kind
	State           State // Leased or Revoking
	Generation      uint64
	Blocks          []uint32 // not to be changed
	TransferID      string
	Peer            string
	TraceID         [16]byte
	GrantedUnixNano int64 // wall clock, for people only
}

// Transfer is one entry of the journal: a lease that ended.
type Transfer struct {
	Ordinal         uint64 // counts the entries of this database from 0
	Cache           CacheID
	Lease           LeaseID
	TransferID      string
	Kind            Kind
	Outcome         Outcome
	Generation      uint64
	Blocks          uint32
	Bytes           uint64
	Peer            string
	TraceID         [16]byte
	GrantedUnixNano int64 // wall clock, for people only
	EndedUnixNano   int64 // wall clock, for people only
}

// Recovery says what Open found.
type Recovery struct {
	Fresh        bool   // the database is new: nothing of before is served
	Reason       string // why, where there was something before: another boot, a void marker, corruption
	SetAside     string // where a database that could not be trusted was put, "" if none was
	Caches       int    // caches known, none attached
	Committed    int    // blocks that will be served if their owner vouches for them
	OpenLeases   int    // leases that were open at the crash
	TornBlocks   int    // their blocks, now FREE
	BallastShort bool   // the ballast could not be made: grants are refused until it can
}
