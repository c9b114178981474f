// Package explore runs the machines of xfer/protocol, the very ones that run in production, inside a model of
// everything around them, and looks for an order of events that breaks a promise. It is pure: no clock, goroutine or
// I/O, and randomness comes from the caller. Nothing but its tests uses it.
package explore
