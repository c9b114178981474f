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
// read. A step is late when the log gets it after it has returned.
//
// # The rules
//
// Whatever moment the process dies at, the log has no block as COMMITTED whose Grant, Evict or Publish has returned, unless it
// was committed again. So a step out of COMMITTED is in the log before it returns. A step into COMMITTED (Commit, Publish) is
// late: it comes into the log some milliseconds afterwards, and a process that is killed before does not serve those blocks
// after its restart, though their owner was told. Close writes what is late.
//
// "In the log" means that the bytes are in the kernel's page cache: they survive the process, and after a reboot the
// memory they speak of is gone too. Hence Pebble commits with Sync over files whose syncs are no-ops (logFS). The
// trap beside it: a commit with NoSync stays in Pebble's own buffer and dies with the process. The directory must be
// on a local file system; a network one may report a failed write only when a file is closed.
//
// # What needs no log
//
// A block without a record that says COMMITTED is not served, and this is why most steps need none:
//
//   - A Grant over blocks that the log does not have as COMMITTED. They were FREE, or their Commit is late still: then the next
//     batch says of that Commit only what is left of it, and nothing is. Each block has the tag of the batch that its Commit is
//     in; the tag of the batch to come means that nothing of it is written. A batch counts as written from the moment that it is
//     handed over, so that a step which comes meanwhile waits for it.
//   - Revoke and Free: the log has had nothing of a lease's blocks as COMMITTED since the Grant, and gets nothing before the
//     Commit, which a revoked lease does not have.
//   - A lease's record: it tells the next start, for people, that a lease was torn. It is written with whichever batch finds the
//     lease open, and many leases end before. The journal's entries are as late.
//   - A generation: the log has a bound of those that may have been given out, some thousands ahead, and a start goes on from it.
//
// So a lease of FREE blocks, its Commit or its Free never wait for the log. What waits is a Grant, Evict or Publish over blocks
// that were COMMITTED for longer than some milliseconds: for one batch, which takes with it what is late.
//
// # The records
//
// A batch is atomic. In it are steps, one record each however many their blocks are: a list of blocks taken out of COMMITTED, or
// put into it with a generation and maybe keys. Steps are numbered without a gap. After some megabytes of them the pages that
// they touched are written, 64 blocks each, and the steps dropped, in one batch (fold): so the log's size is bounded by that of
// the caches, and a start reads pages and then at most some megabytes of steps, which it folds at once. Attach, Drop and
// DropDetached fold too, so that no step outlives the cache that it speaks of, nor meets another of the same id.
//
// Beside the log lie: boot (the boot id, fsynced; any other voids everything), epoch (24 upper bits of the
// generations, counted up for every fresh database; the counter below has 40 bits and takes the next epoch when it
// is used up), witness (the ordinal of the last acknowledged batch, which finds a log that lost its end and which
// Pebble itself takes for a crash's normal end; or the void marker) and ballast.
//
// Records have format version 2. Those of version 1 (a record for each COMMITTED block, void while a lease's record names it) are
// read, and replaced by the start that reads them.
//
// # Memory and time
//
// The mirror takes 18 bytes a block, in arrays made with the cache; a block with a key takes the key's length, or that of the
// longest key among its 256 neighbours, and 16 bytes more. Beside it are the log's buffers (some 10 MiB, whatever the number of
// blocks), what is late (1 MiB at most) and the open leases: four bytes a block and about 400 a lease. No call allocates for a
// block. A million blocks are 18 MiB of memory, 62 MiB with keys of 32 bytes, and 9 or 45 MiB on disk.
//
// The writer holds the steps up while it collects a batch, not while it writes it. Only folding takes long in a cache of a
// million blocks whose leases are scattered all over it: some milliseconds, once for 500 leases of 1,024 blocks.
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
// After the log failed, Evict and Drop write the void marker into the witness, which needs no space, and go on in
// memory: the next start serves nothing. Revoke and Free need no log. Commit goes on in memory as well, which the rules allow. The database does
// not recover by itself; the next start does it.
//
// # Invariants, each with the test that holds it
//
//   - whenever the process dies, nothing torn is served: TestKillServesNothingTorn; and that this test finds the
//     trap, and a late step out of COMMITTED: TestKillFindsTheTrap
//   - a crash loses late steps alone, whichever steps, folds and keys were before it: TestCrashLosesOnlyWhatIsLate
//   - no step is missing among those that are read: TestImpossibleRecordsAreNotRead
//   - what version 1 wrote is served: TestFormerVersionIsServed
//   - memory a block and allocations a call: TestMemoryPerBlock, TestNothingIsAllocatedForABlock
//   - a log that lost its end serves nothing: TestWitnessFindsALostSuffix, TestDamagedFilesServeNothingTorn;
//     nor one that lost its middle: TestManifestThatLostItsEndServesAllOrNothing
//   - served = vouched for and COMMITTED under that generation, same binding, layout, model, size:
//     TestAttachServesTheIntersection, TestAnotherMemoryInheritsNothing
//   - another boot serves nothing: TestAnotherBootServesNothing
//   - a generation never returns, whatever became of the database: TestGenerationsNeverRepeat, TestCrashLosesOnlyWhatIsLate
//   - a key finds its block while that is COMMITTED, and not a moment longer: TestPrefixAgainstNaiveModel
//   - steps are all or nothing and follow the states: TestSteps, TestRandomStepsAgainstAModel
//   - an unknown record version is not served and not misread: TestUnknownVersionIsNotRead, FuzzDecode; nor
//     is it in the way of a daemon that goes back to an older version: test_state_directory (test/integration)
//   - a block has its own key, in whatever order a list names it: TestKeysStayWithTheirBlocks
//   - with a full disk blocks are taken back and none granted: TestFullDiskUsesTheBallast,
//     TestFullDiskWritesTheVoidMarker; no point of failure ends the process: TestFailureAtEveryWrite
//   - where the process has no descriptor left the log goes on: TestNoDescriptorIsLeft
//   - an idle database does not tick: TestIdleDoesNothing
package blockdb
