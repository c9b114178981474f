package explore

import "fmt"

// Kind tells events apart.
type Kind uint8

const (
	// Events that must happen in the end: by them alone every run comes to rest.
	Connect      Kind = iota // transfer A: the source dials and sends BIND
	ToOwner                  // transfer A: the owner takes the next frame
	ToSource                 // transfer A: the source takes the next frame
	OwnerHears               // transfer A: the owner learns that the link is down
	SourceHears              // transfer A: the source learns that the link is down
	OwnerClock               // the owner's clock reaches the next deadline
	SourceClock              // the source's clock reaches the next timer
	OwnerTick                // lease A: its timer fires
	SourceTick               // transfer A: a timer fires
	Fence                    // transfer A: the fence of its window completes
	Place                    // packet (transfer A, piece B, copy C): the chunk inside the gate is in the memory
	Fails                    // transfer A, piece B: an operation that was cancelled, or whose session is down, completes
	Arrives                  // transfer A, piece B: the owner counts an arrival
	OwnerMourns              // the owner's daemon learns that its client is dead
	SourceMourns             // the source's daemon learns that its client is dead
	lastProgress             //
	Start                    // transfer A: its client starts it
	HandOver                 // transfer A: its client hands the next layer over, or finishes
	Send                     // transfer A, piece B: the fabric reads the source's memory, or carries a read's request
	Enter                    // packet (A, B, C): the chunk asks at the gate, or a read's answer reaches the reader
	Ack                      // transfer A, piece B: the initiator learns how the operation went
	Restart                  // the owner's daemon starts again and its client registers
	GrantLease               // lease A
	lastOptional             //
	Revoke                   // lease A: a choice of the owner's client
	Renew                    // lease A: a choice of the owner's client
	Reuse                    // block A: the owner's client evicts a committed block and writes it
	Cancel                   // transfer A: a choice of the initiator's client
	lastChoice               //
	Cut                      // transfer A: its link breaks, what is under way on it is lost
	CrashOwner               // A of the journal's entries that may be lost survive
	CrashSource              // and it runs again at once, empty
	KillOwner                // the owner's client dies
	KillSource               // the initiators' client dies
	Resend                   // transfer A, piece B: the fabric carries the operation once more
	FenceFails               // transfer A
	GrantFails               // transfer A: its BIND is taken, and the fabric opens no window
	StepWall                 // the owner's wall clock is put back (A = 0) or forward (A = 1)
	kinds
)

var kindNames = [...]string{"Connect", "ToOwner", "ToSource", "OwnerHears", "SourceHears", "OwnerClock", "SourceClock", "OwnerTick", "SourceTick",
	"Fence", "Place", "Fails", "Arrives", "OwnerMourns", "SourceMourns", "", "Start", "HandOver", "Send", "Enter", "Ack", "Restart", "GrantLease",
	"", "Revoke", "Renew", "Reuse", "Cancel", "", "Cut", "CrashOwner", "CrashSource", "KillOwner", "KillSource", "Resend", "FenceFails", "GrantFails", "StepWall"}

func (k Kind) String() string { return kindNames[k] }

func (k Kind) progress() bool { return k < lastProgress }
func (k Kind) choice() bool   { return k > lastOptional && k < lastChoice }
func (k Kind) fault() bool    { return k > lastChoice }

// atOwner says whose step it is: of the owner's node or of the initiators'. The clocks, the network and crashes are nobody's.
func (k Kind) atOwner() bool {
	switch k {
	case ToOwner, OwnerHears, OwnerTick, Fence, Place, Arrives, OwnerMourns, Enter, GrantLease, Revoke, Renew, Reuse, FenceFails, GrantFails:
		return true
	}
	return false
}

func (k Kind) atSource() bool {
	switch k {
	case Connect, ToSource, SourceHears, SourceTick, Fails, SourceMourns, Start, HandOver, Send, Ack, Cancel, Resend:
		return true
	}
	return false
}

// Action is one event of a run. Its numbers name things by what they are, not by where they stand in a list, so that
// a trace stays meaningful when other actions are left out of it.
type Action struct {
	Kind    Kind
	A, B, C uint8
}

func (a Action) String() string {
	switch a.Kind {
	case OwnerClock, SourceClock, OwnerMourns, SourceMourns, Restart, CrashSource, KillOwner, KillSource:
		return a.Kind.String()
	case Place, Enter:
		return fmt.Sprintf("%s transfer %d piece %d copy %d", a.Kind, a.A, a.B, a.C)
	case Fails, Arrives, Send, Ack, Resend:
		return fmt.Sprintf("%s transfer %d piece %d", a.Kind, a.A, a.B)
	case OwnerTick, GrantLease, Revoke, Renew:
		return fmt.Sprintf("%s lease %d", a.Kind, a.A)
	case Reuse:
		return fmt.Sprintf("%s block %d", a.Kind, a.A)
	case CrashOwner:
		return fmt.Sprintf("%s, %d unsynced entries survive", a.Kind, a.A)
	case StepWall:
		return fmt.Sprintf("%s %s", a.Kind, [...]string{"back", "forward"}[a.A])
	}
	return fmt.Sprintf("%s transfer %d", a.Kind, a.A)
}
