package rdma

import "github.com/kvxfer/kvxfer/internal/fault"

// What follows is not every provider's: it saves threads from being woken, which on a quiet machine takes longer than a
// small operation. Users ask with a type assertion and do without where it is not there.

// Deliverer is a Provider that can bring its events instead of keeping them.
type Deliverer interface {
	// Deliver makes the provider hand every event to take instead of to Poll, which then gives nothing and whose Wait ends
	// with the provider alone. It is called once, before the first session. take is called from the provider's own
	// goroutines, for one session by one at a time, and from inside Progress; never from inside another call of the user's
	// and with no lock held that such a call needs: take may call Post, Cancel, Grant and Close. It must not block.
	// The slice is the provider's again when take returns.
	Deliver(take func([]Event))
}

// Mover is an Initiator whose target is in the same process, so that an operation is nothing but a copy.
type Mover interface {
	// Move runs operations on the caller's goroutine, and with the help of others where they are large, and returns when
	// they have ended: with how many of ops[0:n] succeeded, in order, and the status of the first that did not (0: all
	// did). When it has returned nothing touches the local memory for any of them, and no arrival of a WRITE is due that
	// was not handed to the target's Deliver or queue. ops[n] may have been placed in part, those behind it were not begun
	// or may have been placed too. The rules for windows, bounds, deadlines and fences are those of Post; limits on what is
	// in flight do not hold. Cancel does not reach a Move; the end of session, region or window does.
	Move(ops []Op) (n int, status fault.Code)
}

// Progressor is an Initiator whose completions can be fetched by the thread that waits for them.
type Progressor interface {
	// Attach leaves the session's completions to Progress: no other thread is woken for them. Attach and Detach count.
	// Whoever attached calls Progress again and again, without sleeping in between, until it detaches.
	Attach()
	// Progress looks once for completions without waiting and hands them to Deliver's take. It returns how many there were.
	Progress() int
	// Detach undoes an Attach. Behind the last one completions come by themselves again.
	Detach()
}
