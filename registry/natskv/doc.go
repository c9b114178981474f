// Package natskv is the registry.Directory on NATS JetStream's key-value store.
//
// Terms. The bucket is the one key-value store of a registry, in the server's memory: every entry is disposable. A
// time to live travels with each entry, so that nodes with different settings share a bucket; the server removes an
// entry that was not repeated in time and tells every watcher. A heartbeat writes the node's sign of life, an entry of its own
// (a beat) that its owner alone watches, and looks whether the node's entry is still the one that this process wrote last. The node's
// entry is written against that revision, so that nobody overwrites a claim that is not its own. A synchronisation is a new watch
// that shows the whole bucket.
//
// Every process looks after the two live nodes behind its own name, and removes the entry of one whose beat is gone (beats.go
// says why, and when that counts). A name whose holder's beat is gone is free, after a grace.
//
// A cache's key contains its node's epoch. Caches that a dead incarnation left are therefore never seen as the new
// one's; nobody removes them, they expire by their own, longer time to live.
//
// A node that stops vanishes from every connected view one TTL, the server's second and one heartbeat after its last heartbeat.
// docs/registry.md has all bounds. When the directory lost its contents as well it takes up to three times to live: one and a
// half until a watch that went silent is replaced, one and a half for the grace.
//
// The bucket is made by whoever misses it. An administrator may make it beforehand (replicas, placement) as long as
// it keeps a limit marker TTL, without which no watcher would hear of an expired node.
//
// Invariants, each with the test that holds it:
//   - the contract of registry.Directory: TestConformance
//   - an empty server on the same address gets every entry again, and no view empties itself meanwhile:
//     TestServerRestartedEmpty, TestRestartDoesNotEmptyTheView
//   - a bucket deleted under a live connection is made again and filled: TestBucketDeleted
//   - a refusal is said at once and with its setting; credentials may be replaced: TestWrongAccessIsSaidAtOnce,
//     TestCredentialsAreReadAgain
//   - the older of two claims survives when the directory forgot it; a dead one does not: TestOlderClaimSurvivesALoss,
//     TestNameOfASilentNodeIsFree
//   - silence while the directory took no signs of life is held against nobody: TestSilenceIsJudgedLate
//   - a cluster loses a server and a fleet goes on: TestTwoHundredNodes; reconnections are spread: TestReconnectionsAreSpread
//   - a process that was stopped beyond its time to live takes back a free name and reports a taken one:
//     TestTakenOver, TestExpiredClaimIsMadeAgain
//   - a watch that went silent is replaced: TestSilentWatchIsReplaced
//   - how old heartbeat and view are is known by the monotonic clock: TestAges
//   - an entry that cannot be read is logged once: TestGarbageIsLoggedOnce
//   - twenty nodes converge: TestTwentyNodesConverge
//   - nothing is left running after Close: every test (goleak)
package natskv
