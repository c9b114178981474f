// Package pidfd waits for the exit of a process that is not a child of this one.
//
// Terms. A pidfd is a descriptor bound to one process, not to its number: the number may be somebody else's a moment
// later, the descriptor never is. It becomes readable when the last thread has exited, also while nobody has reaped the
// process. A stopped process has not exited.
//
// Invariants, each with the test that holds it:
//   - Wait ends with the process or with its context, without a thread that waits: TestWait
//   - what ended one wait never ends the next: TestWaitsOneAfterTheOther
//   - a process that is gone cannot be opened, nor one that has no number here: TestOpenGone, TestOpenUnseen
//   - the peer of a Unix socket is found even when its number is not known: TestOfPeer
package pidfd
