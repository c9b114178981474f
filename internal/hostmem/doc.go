// Package hostmem takes memory that a client handed over: a memfd, which it checks for what makes sharing safe and maps
// (Map), or a descriptor of the client's own /proc/self/mem for memory that cannot be shared (OpenProcess).
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
// The second way. A descriptor of /proc/PID/mem is bound to an address space: whoever gets the process number later is
// out of reach, and needs no check. The client opens it itself, which needs no privilege and works from another PID
// namespace. What it cannot give is a life of its own: the memory ends with the client's process, and a byte that lands
// late lands in whatever the client has put at that address since. So the promise, a block that was taken back is never
// written again, holds while the client lives and keeps the memory where it was ("live-client-only"). Writes pass the
// protection of private pages (the kernel's rule for this file), so a client should register only what it may write.
// Every access is a system call on another address space, which can wait for that process's own page faults: a client
// that has set up such a fault for ever (userfaultfd) holds up its own fences and the lane of whoever writes to it.
//
// Invariants, each with the test that holds it:
//   - what fails a check is refused by the check's name and leaves neither descriptor nor mapping: TestRefusals
//   - daemon and client see each other's writes: TestWritesAreSeenBothWays
//   - the mapping outlives the client's descriptor, Close ends it once: TestMappingOutlivesTheDescriptor
//   - adopted memory begins anywhere in its object: TestAdoptedMemoryBeginsAnywhere
//   - memory that the daemon makes for itself passes the same checks: TestAllocate
//   - two objects never have one identity: TestTwoObjectsDiffer, TestProcessIdentity
//   - a process's memory is that and can be reached, or is refused by the check's name: TestProcessRefusals
//   - it ends with its process and never becomes another's: TestProcessEnds
//   - memory in a punched hole is still writable by system call: TestPunchedHole
package hostmem
