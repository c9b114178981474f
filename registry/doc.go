// Package registry is the contract of the directory of nodes and caches, and the local view that answers from it.
//
// Terms. A node is one daemon; it announces itself under its name. An epoch is one daemon start: 32 hex digits,
// random, compared for equality only. An entry is what the directory holds about a node or a cache; it belongs to
// the node that wrote it (its owner) and dies unless the owner repeats it (heartbeat). A claim is the part of a node
// entry that every format has: name and epoch. A view is the copy that this process keeps in memory.
//
// The directory is disposable: no lease is granted, ended or fenced on its word, the data path never asks it, and
// everything in it is written again by its owner when it was lost. So a view keeps answering while the directory is
// away and says so (View.Connected).
//
// The package is pure: no network, no goroutine, no clock. registry/natskv implements it on NATS JetStream;
// registry/registrytest is the suite that every implementation passes.
//
// Invariants, each with the test that holds it:
//   - a cache is seen only while its node is there under the same epoch: TestCachesFollowTheirNodesEpoch
//   - a tenant's caches are seen by asking for that tenant only: TestTenantsAreApart
//   - garbage never changes a view: TestGarbageChangesNothing, FuzzDecode
//   - an entry of a newer format that still parses is kept, unknown fields are ignored: TestNewerFormatIsKept,
//     test_two_versions (test/integration)
//   - what a resynchronisation does not show again vanishes, after a grace in which its owner may repeat it:
//     TestSweepAfterSync
//   - names map to keys and back without collision: TestKeysAreABijection, FuzzParseKey
//   - a view knows when the directory told of a node last, by the clock of who feeds it: TestToldFollowsTheNode
//   - readers never see a half-made state and may be many: TestConcurrentReaders
package registry
