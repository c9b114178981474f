// Package shm is the provider of the fabric contract between processes of one host: between the clients of one daemon and
// of two daemons that can hand each other descriptors. Every byte is copied once, by the daemon that owns the destination,
// from the one client's memory into the other's.
//
// Terms. The owner of memory is the side whose client has it; the reader is the other side, which maps it for reading only.
// In a WRITE the target reads the initiator's memory, in a READ the initiator the target's. A slot is the owner's permission
// to read: a word in a page that the reader can see. A page is one side's part of what both processes know of each other. A
// task is one frame's copy; workers take tasks in turn, 1 MiB at a time. The grace is how long an owner that takes memory
// back waits for a reader that is inside. docs/protocol.md ("Shared memory") has the bytes.
//
// Why the destination's daemon copies: a process that is stopped in the middle of a store goes on with it whenever it is
// continued, and nothing can stop that. Stores into a client's memory come from its own daemon alone, so that daemon's gate
// (package gate) is the whole fence. Reading late does no harm as long as nobody counts what was read, so the other half is
// validation: a reader looks at the slot before and after each chunk of 256 KiB, and a chunk after which the word has
// changed ends the operation without success. The owner changes the word first and then waits for readers to be outside,
// for the grace at most. A reader that was stopped inside finds the changed word when it goes on.
//
// "Same host" is never inferred from a name: it is the socket at the path in the session's parameters being there, and being
// of this user or of root. Where it is not, Connect says PeerUnreachable and why.
//
// A provider whose own target its parameters name has both clients before it: the secret in them is proof enough, so there is no
// socket, no page and no slot. A job is one posted operation, or all of one Move, copied in chunks behind two gates: the window's and
// its own, which the end of the local region, the session or the operation shuts. All who copy take chunks from one counter. The
// caller of Move copies itself and wakes workers for a large list without waiting for them; at the end it waits only for chunks that
// were begun.
//
// Decisions.
//   - A socket of type SEQPACKET, so that a message and the descriptor beside it stay together. Messages hold lists, never payload.
//   - Each side makes a page of its own and seals it against everybody else's writing (FUTURE_WRITE): slots of its memory, and
//     counts of its workers inside the other side's slots. One page that both write would let a peer reach into this side's
//     permissions, punch holes into it, or truncate it, and a fault in a Fence would end the daemon.
//   - What stands in a peer's page is never trusted with this side's memory: a wrong count costs a grace, a wrong word a copy.
//   - Also a WRITE has a slot, for its source: Cancel must not wait for a target that is stopped. Slots are taken in the order
//     in which they became free, and a word counts its uses, so that an old permission does not open a new one.
//   - A READ window's deadline stands in its slot as the host's CLOCK_MONOTONIC: each process takes off what its time namespace
//     adds. Where one cannot tell what that is, the target's timer alone ends the window.
//   - Peers' memory is mapped once a session, at first use, and unmapped when the region is closed. A peer that is stopped then
//     keeps it until it goes on; so it is with every mapping.
//   - The seals of a peer's memory are checked (SHRINK, SEAL), since memory that is cut off under a copy faults. Copies survive
//     faults all the same (package copykernel): holes that are filled while no page is left, own memory that is not sealed.
//   - A task of at most 64 KiB is copied by the goroutine that received it: waking a worker costs more.
//   - The workers are as many as Go's processors, and never turn idly: beside processes that use all processors a Move goes on alone
//     with what the system gives its thread. What it waits for at the end is at most a chunk a worker, and it sleeps after 30 us.
//   - With Deliver whoever found an event brings it: the goroutine that read it, or the worker that copied last. Meanwhile it is counted
//     nowhere, so that the user may close the session from there, and what is queued of it is ended by Close itself. What a user's own
//     call ends comes from a goroutine made for it: Cancel, Close, the arrivals of Move.
//   - Moves do not count as in flight: their callers wait, and hold nothing here that would not end with them.
//   - A region without a descriptor is refused with NotSupported. Memory of another process (rdma.MemoryProcess) is read and
//     written through its /proc/PID/mem; between two such regions a buffer of 64 KiB stands.
//   - A WRITE that is cancelled when all of it is sent may still arrive; its completion says Wrote.
//   - What a peer can make this node keep is bounded: tasks and answers a session, regions, windows, hellos.
//
// Invariants, each with the test that holds it; the contract's are TestConformance, TestConformanceInside:
//   - taking memory back never waits longer than the grace for a peer, and what a stopped reader goes on with is void:
//     TestAStoppedReaderHoldsNoFenceUp, TestAStoppedTargetHoldsNoCancelUp; test/integration test_source_daemon_stopped,
//     test_no_late_write
//   - a deadline voids whoever is inside: TestDeadlineVoidsAReader; in every time namespace: TestTimeNamespace, test/integration
//     test_clocks_apart; a slot's next use is another permission: TestASlotsNextUseIsAnother
//   - only this user's and root's processes with the session's secret get in, once: TestHelloIsChecked, TestTrustedUser;
//     test/integration test_another_user; silent ones are few and go: TestSilentConnectionsAreBounded
//   - a peer that keeps no rule ends its own session and nothing else: TestViolationsEndTheSession, TestViolationsOfATarget,
//     FuzzSession, FuzzFrames; and is held back: TestAPeerThatDoesNotReadIsHeldBack, TestArrivalsThatNobodyPollsHoldThePeerBack
//   - nobody else can write or cut a page: TestPageLayout
//   - a fault in memory, or a process that is gone, ends one operation with MemoryFault: TestMemoryFaults,
//     TestTruncatedDestination, TestProcessGone; all kinds of memory reach each other: TestKindsOfMemory, TestKindsOfMemoryInside,
//     TestHugePages
//   - memory that was taken away is unmapped at the peer: TestRegionCloseUnmapsAtThePeer; sessions leave nothing: TestNothingIsLeft, TestMain
//   - inside one process there is no socket, descriptor or mapping of a session: TestInsideTakesNoSocket; one initiator, with the
//     secret: TestOneInitiatorInside; the end of one side is the loss of the other's peer: TestEndOfASessionInside
//   - a Move keeps the rules of Post: TestMoveKeepsTheRules, TestMoveAtRandom, TestMoveMeetsAFault; whatever takes memory back ends
//     it in its middle, on every thread: TestMoveIsEnded, TestMoveUnderFences (package internal/node tries it with daemons); it waits for
//     nobody who has not begun: TestMoveWaitsForNoWorker; and allocates nothing: TestMoveAllocatesNothing
//   - events that are delivered come from no call of the user's, one session's from one goroutine at a time, and Close may be called
//     from there: TestDeliverInside, TestCloseFromTake
//   - a large operation does not hold up others: TestLargeDoesNotHoldUpSmall; no allocation for a block: TestNoAllocationPerBlock
//   - whatever keeps two processes apart is PeerUnreachable with its reason: TestUnreachable
//   - the socket is its owner's alone, and only sockets are replaced: TestSocketFile
//   - bytes on the wire do not change within a version: TestGoldenFrames
package shm
