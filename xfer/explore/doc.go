// Package explore runs the machines of xfer/protocol, the very ones that run in production, inside a model of
// everything around them, and looks for an order of events that breaks a promise. It is pure: no clock, goroutine or
// I/O, and randomness comes from the caller. Only its tests use it. docs/explorer.md tells how to read what it prints.
//
// Terms. A world is one state: two nodes, their clients, memory, links, packets and the journal. An action is one event
// that may happen next. Memory is tokens: a piece holds who wrote it last and which version, so any wrong byte is seen.
// Exhaust visits every state of a small world; Walk takes random ways through a large one; Shrink leaves out of a trace
// what it does not need. A defect is a rule that the model's drivers break on purpose. A rest is a state in which
// nothing must happen any more.
//
// The drivers in here do what those of package xfer do with the machines' effects. Where the real ones leave the moment
// open, the model takes the worst: a client overwrites a block as soon as it is told that it is its own, and vouches
// after a restart for the last contents that it ever knew as committed, whatever it has leased since.
//
// The orders of events. Links keep the order of their frames; a cut loses all that are under way, and each side learns
// of it at any later moment. Packets arrive in any order, at any time (after the cancel, the cut, the crash), twice, or
// never. A timer fires at any moment after its time. A crash of the owner loses what is volatile and, with LostSuffix,
// the log's entries that were not synced. A node that is paused and goes on is a node that takes no step for a while:
// Exhaust has all orders and therefore those, Walk stops nodes on purpose. Wall clocks are stepped in walks and in the
// worlds with the defect that reads them; nothing else could notice.
//
// Two states are one when nothing can tell them apart from then on (see key and settle; TestKeysMeanTheFuture). This
// drops what has no effect any more and takes times relative to now; it leaves out no order of events.
//
// Invariants that are checked in every state, by the rule that a Violation names:
//   - late write, unmapped: a block that its owner was told is its own, or that nobody maps, is not changed by a peer
//   - torn block, torn layer: a committed block (told, or served after a restart) and a visible layer hold what the
//     source held at the start of its push, all pieces
//   - bound twice: a lease is accepted by no more transfers than it permits
//   - no FIN, false DONE: nothing is committed without FIN, no source is told DONE when the target has not committed
//   - read, late read: a read that ends well holds what was there when the lease was granted; after its end, whatever the
//     end, the reader's memory does not change; no window is open on memory whose owner was told that it is free
//   - early release, two results: "released" means nothing outstanding, and there is one result
//   - unsaid write: a failure that says "nothing was written" is right
//   - clock: what expires does so on the owner's monotonic clock, and what has expired takes no byte and never commits
//   - liveness: no run comes back to where it was, and each rest is an end: transfers reported and released, leases over
//
// The tests: TestExhaustive and TestRandom hold these; TestEachDefectIsFound and TestWalksFindDefects show that both
// would see each defect; TestShrinkKeepsTheViolation shows that what is printed is what was found.
package explore
