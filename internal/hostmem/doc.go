// Package hostmem takes a memfd that a client handed over, checks that it can be shared safely, and maps it.
//
// Terms. A mapping is the daemon's own view of the client's memory object: it outlives the client's process, so a byte
// that lands late lands in memory nobody uses. The object is the file behind it, named by st_dev and st_ino. A sparse
// object has pages that nobody has allocated yet.
//
// What the checks buy. With SHRINK, GROW and SEAL the object keeps its size for ever, so an access inside the mapping
// never meets a truncated file. WRITE or FUTURE_WRITE would make it unmappable as writable now or after a restart of
// the daemon. A sparse object is refused because the kernel charges a page to whoever touches it first: placing bytes
// would then be charged to the daemon, which the client could drive out of memory.
//
// What they cannot buy. The seals do not forbid fallocate(FALLOC_FL_PUNCH_HOLE), so a client can still take pages out
// later. A system call (readv) into such a hole gets a fresh zeroed page, charged to the daemon, or EFAULT when there
// is none; a store by the processor itself would then get SIGBUS. Therefore providers touch a mapping only by system
// calls, or under debug.SetPanicOnFault.
//
// Invariants, each with the test that holds it:
//   - what fails a check is refused by the check's name and leaves neither descriptor nor mapping: TestRefusals
//   - daemon and client see each other's writes: TestWritesAreSeenBothWays
//   - the mapping outlives the client's descriptor, Close ends it once: TestMappingOutlivesTheDescriptor
//   - two objects never have one identity: TestTwoObjectsDiffer
//   - memory in a punched hole is still writable by system call: TestPunchedHole
package hostmem
