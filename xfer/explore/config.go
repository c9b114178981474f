package explore

import (
	"time"

	"github.com/kvxfer/kvxfer/rdma"
)

// Mode says which machines the world is made of.
type Mode uint8

const (
	Write Mode = iota // protocol.Lease at the owner, a writing protocol.Transfer at the source
	Read              // protocol.Offer at the owner, a reading protocol.Transfer at the peer
)

// The durations of every world. Only their order matters: a transfer's own time is longer than its lease's unless
// Config.ShortTransfers says otherwise.
const (
	ttl          = rdma.Instant(4 * time.Second)
	longTimeout  = rdma.Instant(8 * time.Second)
	shortTimeout = rdma.Instant(3 * time.Second)
)

// LeaseSpec is a lease that the owner's client may take, once.
type LeaseSpec struct {
	Blocks []uint8 // of the owner's cache
	Uses   uint8   // Read: how many transfers may bind it
}

// TransferSpec is a transfer that the peer's client may start, once, with the ticket of a lease.
type TransferSpec struct {
	Lease  uint8
	Source []uint8 // Write: blocks of the source's cache, as many as the lease has. A Read has destination blocks of its own
}

// Config is a world: its size, how weak its fabric is, what may go wrong and how often.
type Config struct {
	Mode      Mode
	Layers    uint8
	Blocks    uint8 // of the owner's cache
	Sources   uint8 // Write: blocks of the source's cache
	Leases    []LeaseSpec
	Transfers []TransferSpec

	Layerwise      bool // the client hands layers over one by one, not all at the start
	ShortTransfers bool // transfers end before their leases
	TwoSteps       bool // a chunk enters the gate in one step and is in the memory in a later one
	EarlyAck       bool // an operation may complete at its initiator before its bytes are placed, as on verbs
	Ungated        bool // Read: the reader copies from the owner's memory by itself, as shm may; only RELEASE validates
	LostSuffix     bool // a commit is logged late: a crash may lose it

	// Limit is how often each counted event may happen: the faults and the choices of clients. Faults and Choices
	// bound their sums.
	Limit           [kinds]uint8
	Faults, Choices uint8

	Defect Defect
}

// Defect is a rule that the model's drivers break on purpose, so that the explorer can show that it would see it.
type Defect uint8

const (
	None               Defect = iota
	NoFence                   // the fence reports success and shuts nothing
	GrantBeforeJournal        // a grant's journal entry is not in the log when the ticket exists
	RepeatCounts              // a piece that arrives again counts as one that is missing
	EpochUnchecked            // tickets and packets of an earlier incarnation are taken by their bare numbers
	ReleaseUnchecked          // a reader takes its last byte for the validation
	BoundTwice                // a second BIND opens a second window
	WallClock                 // the owner compares deadlines with its wall clock
	FinIsEnough               // FIN commits whatever has arrived
	CommitWithoutFin          // the last piece commits before FIN
	FreedBeforeFence          // the owner is told that its blocks are free when the fence begins
	CommitUnfenced            // a lease that ends well is not fenced
	ReleasedTooEarly          // the initiator's client is told "released" while operations are outstanding
	TimerOnly                 // placement does not compare the deadline, only the timer ends a window
	DoneWithoutAnswer         // a source takes its last completion for DONE
	RenewRevives              // a renewal does not look at the time first
	VouchAlone                // after a restart whatever the client vouches for is served
	LostLinkFrees             // losing the link counts as a fence
	StuckFenceFrees           // a fence that failed counts as done
	TimerForgotten            // the owner's timer is never armed
	defects
)

var defectNames = [...]string{"None", "NoFence", "GrantBeforeJournal", "RepeatCounts", "EpochUnchecked", "ReleaseUnchecked", "BoundTwice",
	"WallClock", "FinIsEnough", "CommitWithoutFin", "FreedBeforeFence", "CommitUnfenced", "ReleasedTooEarly", "TimerOnly", "DoneWithoutAnswer",
	"RenewRevives", "VouchAlone", "LostLinkFrees", "StuckFenceFrees", "TimerForgotten"}

func (d Defect) String() string { return defectNames[d] }

// Defects lists all of them.
func Defects() (all []Defect) {
	for d := None + 1; d < defects; d++ {
		all = append(all, d)
	}
	return all
}
