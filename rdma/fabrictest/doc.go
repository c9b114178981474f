// Package fabrictest is the conformance suite of the fabric contract in package rdma. A provider that passes Run keeps
// the contract as far as a test can tell; a provider's own tests cover only what is its own (frames, lanes, probing).
//
// Terms. A harness makes pairs of fresh nodes of the provider under test. To cut a session is to break it as a peer's
// death does. To stall it is to hold its bytes back and deliver them later, unchanged: that is how a late byte is made.
// A pattern's class stands in the top two bits of each of its bytes, so that one byte, wherever it lands, says whether
// it was stored before or after a promise. The image of a region is what it must hold; whole regions are compared
// with their images, so a byte that moved too much is found like one that did not move.
//
// How a provider uses it: one test that calls Run with a Harness. Fill, Alloc and Diff are there for its own tests too.
// Random tests print their seed; KVXFER_SEED repeats it. Deadlines are tested with a clock that only the suite moves.
// Every wait has a bound that only a provider which never does the thing reaches (Harness.Bound).
//
// The tests, by the promise in package rdma that they hold:
//   - bytes move exactly: Sizes, Scattered, ConcurrentPosters, BothDirections, SeveralRegions
//   - no late byte: NoLateByte (each way to take memory back, against bytes held back), FenceUnderLoad, FenceStopsReads,
//     RegionClose; a fence ends its own window alone (FenceIsPrecise) and never waits for the peer (FenceNeverWaits)
//   - deadlines are permission: DeadlineStopsPlacement, DeadlineInMidOperation, ExtendMovesTheDeadline
//   - bounds: OutOfBounds, RegionEnd; on the initiator's side and at the target's Grant: RefusedByPost, RefusedByGrant
//   - keys: StaleKey, AccessIsOneWay
//   - one completion an operation: EveryOpCompletes, PeerDeath; every other test counts too, when its nodes are closed
//   - a completion releases local memory: CompletionReleasesSource, CancelStopsRead
//   - success and arrival come after the bytes: ArrivalAfterBytes
//   - Post never blocks: BackPressure, LargerThanTheWindow
//   - what is closed says so, and leaves nothing behind: AfterClose, Leaks; every other test looks for goroutines too
//   - capabilities and memory kinds: Caps
//   - all of this holds where events are delivered (rdma.Deliverer), and where completions are fetched by whoever waits for them
//     (rdma.Progressor), now attached and now not: the subtests Delivered and Attached, which have CallsFromTake besides
//
// Not tested here, because a harness hides how nodes find each other: Connect to a peer that is not there, and
// parameters that are forged.
//
// Invariants of the suite itself:
//   - a provider that keeps the contract passes: TestReference
//   - each promise, broken alone, fails the test named for it and for the right reason: TestSeededDefectsAreFound
//   - one byte tells its pattern, and a byte beside a region shows: TestPatternsAndGuards
package fabrictest
