// Package ring is the submission and completion ring between a client and its daemon: shared memory in which posts of
// prepared transfers (package wire: Post, Posted) travel without a system call while both sides are awake.
//
// Terms. The ring is one sealed memfd that the client makes. It holds two arrays of the same number of entries, a power of
// 2: submissions, which the client writes, and completions, which the daemon writes. Tails and heads count entries and never
// wrap; an entry's place is its number modulo the entries. The doorbell is an eventfd that wakes the daemon; the bell is a
// pair of connected sockets: a byte wakes the client, the end of it is the daemon's end, also of one that was killed. Memory
// is torn when a page of it cannot be reached: no seal keeps a client from taking pages out, and the kernel may have none to
// put in their place.
//
// Layout, little-endian, every word in a cache line of its own:
//
//	    0  magic u64 "KVXRING1"
//	    8  entries u32
//	   64  submitted u64    client: entries it has written
//	  128  taken u64        daemon: entries it has read; their places may be written again
//	  192  completed u64    daemon: completions it has written
//	  256  seen u64         client: completions it has read
//	  320  daemon sleeps u32: 1 when the client must ring the doorbell behind a submission
//	  384  client sleeps u32: 1 when the daemon must ring the bell behind a completion; it takes that back
//	  448  ended u32        daemon: 1 when it reads no more
//	 4096  submissions, 64 bytes each: a wire.Post and zeros
//	+64*n  completions, 32 bytes each: a wire.Posted
//
// Who wants to sleep stores 1 in its word, looks once more, and sleeps. Who has written looks at the other's word behind its
// own store. Between a store and a load of another place a processor may change the order, and a client in Python has no
// fence: so who sleeps looks again after a millisecond before it sleeps for good. A doorbell that was missed so costs a
// millisecond. The rest needs total store order; where the hardware has less (Usable), clients post over the socket.
//
// Invariants, each with the test that holds it:
//   - nothing in the ring is believed: an entry is copied out once and the copy is used, and counts that cannot be end the
//     ring: TestEntriesAreCopiedOnce, TestWrongCountsEndTheRing, FuzzDaemonSide
//   - completions never overtake their places: the client has at most as many posts out as the ring has entries:
//     TestPostsAreBounded
//   - every post of a client comes out once and in order, whoever sleeps when: TestRandomTraffic, and
//     TestTrafficBetweenProcesses; a doorbell that was missed costs a millisecond: TestMissedDoorbell
//   - a daemon with nothing to do sleeps, and is woken by the doorbell: TestSleepAndDoorbell
//   - a client that waits sees the daemon's end: TestDaemonsEndIsSeen
//   - memory that may shrink, or is smaller than it says, is refused, and so are other descriptors than these:
//     TestMemoryIsChecked, TestDescriptorsAreChecked; torn memory ends the ring and not the daemon: TestTornMemory
//   - nothing that a client does to the descriptors makes the daemon wait: TestClientCannotHoldTheDaemon
//   - neither side allocates: TestNothingIsAllocated
//   - who looks and gains nothing by it looks shorter, and a look always ends: TestSpinFollowsWhatItGains, TestSpinEnds
package ring
