// Package natskv is the registry.Directory on NATS JetStream's key-value store.
//
// Terms. The bucket is the one key-value store of a registry, in the server's memory: every entry is disposable. A
// time to live travels with each entry, so that nodes with different settings share a bucket; the server removes an
// entry that was not repeated in time and tells every watcher. A heartbeat repeats the node's entry; it is checked
// against the revision that this process wrote last, so that nobody overwrites a claim that is not its own. A
// synchronisation is a new watch that shows the whole bucket.
//
// A cache's key contains its node's epoch. Caches that a dead incarnation left are therefore never seen as the new
// one's; nobody removes them, they expire by their own, longer time to live.
//
// A node that stops vanishes from every connected view one TTL after its last heartbeat, give or take the server's
// second. When the directory lost its contents as well it takes up to three: one and a half until a watch that went
// silent is replaced, one and a half for the grace.
//
// The bucket is made by whoever misses it. An administrator may make it beforehand (replicas, placement) as long as
// it keeps a limit marker TTL, without which no watcher would hear of an expired node.
//
// Invariants, each with the test that holds it:
//   - the contract of registry.Directory: TestConformance
//   - an empty server on the same address gets every entry again, and no view empties itself meanwhile:
//     TestServerRestartedEmpty, TestRestartDoesNotEmptyTheView
//   - a bucket deleted under a live connection is made again and filled: TestBucketDeleted
//   - a process that was stopped beyond its time to live takes back a free name and reports a taken one:
//     TestTakenOver, TestExpiredClaimIsMadeAgain
//   - a watch that went silent is replaced: TestSilentWatchIsReplaced
//   - how old heartbeat and view are is known by the monotonic clock: TestAges
//   - an entry that cannot be read is logged once: TestGarbageIsLoggedOnce
//   - twenty nodes converge: TestTwentyNodesConverge
//   - nothing is left running after Close: every test (goleak)
package natskv
