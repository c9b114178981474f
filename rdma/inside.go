package rdma

// Insider is a Provider that reaches itself without leaving the process: a session whose both sides are its own is a Mover's, and
// nothing of it can be lost on a way.
type Insider interface {
	Provider
	// Inside says so; addr of Connect is not looked at then.
	Inside() bool
}
