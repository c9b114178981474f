// Package protocol is the core of leases and pushes: two state machines that turn events into effects. They hold no
// clock, goroutine, lock or I/O, so the same input always gives the same output; package xfer drives them.
//
// Terms. A Lease is the target's side: permission to write given blocks, until it is committed or fenced. A Push is
// the source's side of one transfer. A piece is (layer, position in the block list). An event carries the owner's
// monotonic time; an effect is something the driver must do, in the order given.
//
// The rules are those of docs/protocol.md ("States"). Invariants, each with the test that holds it:
//   - a lease commits only when every piece has arrived and FIN named their number: TestCommitNeedsPiecesAndFin
//   - a piece that arrives twice counts once: TestRepeatedPieceCountsOnce
//   - only the first bind owns a lease: TestSecondBindIsRefused
//   - no block becomes free or committed while its window may still be written: TestNothingEndsBeforeTheFence
//   - a failed fence quarantines: TestFailedFenceQuarantines
//   - a push never sends FIN after it has ended: TestNoFinAfterTheEnd
//   - a push says "released" only when no operation is outstanding: TestReleasedMeansNothingOutstanding
//   - every machine ends, whatever the order of events: TestRandomHistoriesEnd
package protocol
