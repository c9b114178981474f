// Package blockdb keeps the metadata of a node's blocks and the journal of its transfers, so that after a crash no
// block is served whose bytes may be half written.
//
// # Terms
//
// A cache is a number of blocks in a client's memory. Its binding is the memory object: boot id, the memfd's
// st_dev and st_ino, and a random cache id made at allocation. A block is FREE, LEASED, COMMITTED or REVOKING. A
// generation is a number that a lease gives to all its blocks; a block never has the same one twice. The owner is
// the client whose memory it is; it vouches for blocks by (block, generation). Serving a block means to say that
// its content is what the owner's generation stands for. A torn block is one whose lease was open when the daemon
// died. The log is a Pebble database; the mirror is the same in memory, dense arrays a cache, and answers every
// read. Must-steps (Revoke, Free, Evict, Drop) are those an owner needs to take blocks back.
//
// # The rules
//
// Every step out of COMMITTED is in the log before it returns; so is every other step, because it costs the same.
// A log write means that the bytes are in the kernel's page cache: they survive the process, and after a reboot the
// memory they speak of is gone too. Hence Pebble commits with Sync over files whose syncs are no-ops (logFS). The
// trap beside it: a commit with NoSync stays in Pebble's own buffer and dies with the process. The directory must be
// on a local file system; a network one may report a failed write only when a file is closed.
//
// One record a lease, which names its blocks, is what takes them out of COMMITTED; their old block records stay and
// count for nothing until the lease's end removes or replaces them. So a grant of a thousand blocks is two small
// puts.
//
// Beside the log lie: boot (the boot id, fsynced; any other voids everything), epoch (24 upper bits of the
// generations, counted up for every fresh database; the counter below has 40 bits and takes the next epoch when it
// is used up), witness (the ordinal of the last acknowledged batch, which finds a log that lost its end and which
// Pebble itself takes for a crash's normal end; or the void marker) and ballast.
//
// # When the log cannot be trusted
//
// Open reads all of it, and before that the list of its tables to a clean end. Damage, a record of another format version or of no sense, or an end before the witness
// sets the whole log aside (renamed, the newest few kept) and begins a fresh one; Recovery says so. A single record
// is never skipped: it might be the one that takes a block out of COMMITTED.
//
// That holds for the log of a newer version too, which a rollback meets. Refusing to start would keep it for that newer
// version, at the price of a node that is down until somebody comes; what is lost here is a warm cache.
//
// # When the log cannot be written
//
// On a full disk the ballast is given back and the write repeated (vfs.OnDiskFull). Until the ballast can be made
// again Attach, Grant and Publish are refused with StoreFailed; the rest goes on in the log.
//
// Where that does not help, or on any other failure, the log has failed until the next start. What Pebble 2.1.7
// does then: Apply calls Logger.Fatalf on a WAL error reported by a sync, panics on one noticed in the next write,
// and on one in a WAL rotation panics while its mutex is not held, which its own deferred unlock turns into a fatal
// error that cannot be recovered. On a failed write of the MANIFEST it calls Fatalf in a background goroutine, and if
// that returns panics there, which cannot be recovered either. A failed flush is repeated without a pause. So logFS
// shows Pebble no failed write but of tables, and lets none reach the disk after the first; Fatalf returns; a failed
// background step pauses; each of them marks the database as failed, and nothing of Pebble's is used after that but
// Close. On the disk the log stays as the process's death at that moment would leave it.
//
// A process without a free descriptor, which clients and peers can bring about, gives the log's spare ones back in the
// same way (spareFS); nothing is refused for that.
//
// After the log failed, a must-step writes the void marker into the witness, which needs no space, and goes on in
// memory: the next start serves nothing. Commit goes on in memory as well, which the rules allow. The database does
// not recover by itself; the next start does it.
//
// # Invariants, each with the test that holds it
//
//   - whenever the process dies, nothing torn is served: TestKillServesNothingTorn; and that this test finds the
//     trap: TestKillFindsTheTrap
//   - a log that lost its end serves nothing: TestWitnessFindsALostSuffix, TestDamagedFilesServeNothingTorn;
//     nor one that lost its middle: TestManifestThatLostItsEndServesAllOrNothing
//   - served = vouched for and COMMITTED under that generation, same binding, layout, model, size:
//     TestAttachServesTheIntersection, TestAnotherMemoryInheritsNothing
//   - another boot serves nothing: TestAnotherBootServesNothing
//   - a generation never returns, whatever became of the database: TestGenerationsNeverRepeat
//   - a key finds its block while that is COMMITTED, and not a moment longer: TestPrefixAgainstNaiveModel
//   - steps are all or nothing and follow the states: TestSteps, TestRandomStepsAgainstAModel
//   - an unknown record version is not served and not misread: TestUnknownVersionIsNotRead, FuzzDecode; nor
//     is it in the way of a daemon that goes back to an older version: test_state_directory (test/integration)
//   - a block has its own key, in whatever order a list names it: TestKeysStayWithTheirBlocks
//   - an unknown record version is not served and not misread: TestUnknownVersionIsNotRead, FuzzDecode
//   - with a full disk blocks are taken back and none granted: TestFullDiskUsesTheBallast,
//     TestFullDiskWritesTheVoidMarker; no point of failure ends the process: TestFailureAtEveryWrite
//   - where the process has no descriptor left the log goes on: TestNoDescriptorIsLeft
//   - an idle database does not tick: TestIdleDoesNothing
package blockdb
