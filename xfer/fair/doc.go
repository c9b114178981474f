// Package fair decides whose operation is posted next on a link, and how much may be in flight. It is arithmetic: no lock,
// clock, goroutine or memory of its own beyond what its caller's sources bring.
//
// Terms. A source has operations to post: a transfer, or whatever else sends over the link. Its client is whom it sends for. A
// cost is what an operation takes of the link, in bytes as long as these would take; the caller counts it. A source with at most Limits.Small
// left is small, any other one is large; a large one becomes small with its last operations. A source is ready while it has an operation to
// post. What is in flight was picked and is not done. A quantum is what each gets before the next one's turn.
//
// Order. Clients take turns, by cost (deficit round robin, where the deficit may become negative: an operation that is larger than
// what was left is paid for in the next rounds). Inside a client small sources go before large ones, but for Limits.Share units of
// cost of theirs a large one that waits gets one. Inside client and class, sources take turns as clients do.
//
// Window. Large sources together have at most Limits.Bulk in flight, and one operation above it. So the rest of Limits.Window is small ones' alone:
// one that comes behind any number of large ones is posted at once, and waits for no more than what is in flight already. That it is
// not overtaken for ever holds for large ones too: where the whole window is full, turns alone count, whatever would fit.
//
// Invariants, each with the test that holds it:
//   - what may be posted is posted: TestWorkConserving
//   - clients that have something to post get the same, and so do sources of a client and class, but for one quantum and one
//     operation each: TestEqualShares
//   - a small source waits for one turn of each other client at most: TestSmallSourceWaitsForATurnOfEachClient; behind large ones
//     it waits for nothing: TestSmallPassesAFullBulkWindow
//   - a large source beside small ones of its client that never end gets its share: TestLargeNeverStarves
//   - who comes and goes leaves nothing, and what is counted agrees with a naive count: TestRandomHistories
//   - picking an operation allocates nothing: TestPickAllocatesNothing
package fair
