package rdma

import "github.com/kvxfer/kvxfer/internal/fault"

// QuietMover is a Mover whose WRITEs need not be reported at the target, for lists that are moved again and again: whoever counts
// there counts distinct tags, and waking a thread for what it has counted costs more than a small copy.
type QuietMover interface {
	Mover
	// MoveQuiet is Move without arrivals.
	MoveQuiet(ops []Op) (n int, status fault.Code)
}

// Insider is a Provider that reaches itself without leaving the process: a session whose both sides are its own is a Mover's, and
// nothing of it can be lost on a way.
type Insider interface {
	Provider
	// Inside says so; addr of Connect is not looked at then.
	Inside() bool
}
