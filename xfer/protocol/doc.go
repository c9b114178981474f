// Package protocol is the core of leases and transfers: four state machines that turn events into effects. They hold
// no clock, goroutine, lock or I/O, so the same input always gives the same output (but for the order of effects on
// different holders of an Offer); package xfer drives them.
//
// Terms. A Lease is the target's side of a push: permission for one transfer to write given blocks, until it is committed
// or fenced. An Offer is permission that several transfers may share, each a holder with a window of its own: a read lease
// on blocks, or an advertised raw region. A Transfer is the initiator's side: of a push (it writes), of a pull (it
// reads) and of raw scatter lists. A piece is (layer, position in the block list), of raw memory one operation. RELEASE is
// a reader's question whether the memory was held throughout; only the answer makes what it read count. An event carries the
// owner's monotonic time; an effect is something the driver must do, in the order given.
//
// A Whole is an instance's lease, at the node that made it of the ranks' parts, each a Lease or an Offer at its own node.
//
// The rules are those of docs/protocol.md ("States"). Invariants, each with the test that holds it:
//   - a lease commits only when every piece has arrived and FIN named their number: TestCommitNeedsPiecesAndFin
//   - a piece that arrives twice counts once: TestRepeatedPieceCountsOnce
//   - only the first bind owns a lease: TestSecondBindIsRefused
//   - no block becomes free or committed while its window may still be written: TestNothingEndsBeforeTheFence
//   - a failed fence quarantines: TestFailedFenceQuarantines
//   - a window that could not be opened is not fenced, whatever the time: TestWindowThatCannotOpenNeedsNoFence,
//     TestOfferWindowThatCannotOpenNeedsNoFence
//   - a renewal moves the end of a living lease only, and not past the transfer's own time: TestRenewMovesTheEnd
//   - an offer gives out no more windows than uses, and ends when all are fenced: TestOfferCountsUses
//   - a read counts only when the lease lived at its RELEASE: TestReleaseIsTheValidation
//   - no holder and no offer ends before its fence: TestOfferEndsBehindItsFences, TestRandomOffersEnd
//   - a raw write is good when its operations, each counted once, are those that FIN names: TestRawWriteCountsOperations
//   - a transfer never sends FIN or RELEASE after it has ended: TestNoFinAfterTheEnd
//   - a write that has sent FIN says that it may have been heard: TestFinMayHaveBeenHeard
//   - a transfer says "released" only when no operation is outstanding: TestReleasedMeansNothingOutstanding
//   - one transfer owns a whole, by whichever part it came: TestWholeIsOwnedOnce; a whole is committed on every part or
//     on none, and ends once: TestWholeCommitsOnAllOrNone, TestRandomWholesEnd
//   - a window that vanished is explained, by the target, the link or the clock: TestVanishedWindowGetsItsReason,
//     TestRefusedReleaseWaitsForItsReason
//   - every machine ends, whatever the order of events: TestRandomHistoriesEnd
//   - what a transfer and a lease say is missing is what is missing: TestMissingAgainstNaiveModel
//   - ranges of pieces are set and counted 64 at a time, and mean the same: TestRangesOfBitsAgreeWithSingleOnes
//   - Clone and AppendKey say all that decides what comes: TestKeysMeanTheFuture
//
// What the machines promise together, with memory, crashes and a bad network around them, is looked for by xfer/explore.
package protocol
