// Package softnic simulates RDMA devices inside one process: package nic's Host and Device with reliable connections that
// send packets, over wires whose packets a test can hold, drop, delay, lose, double and reorder. It is for tests, which are the only
// ones that import it (internal/deptest).
//
// Terms. A fabric is everything that can reach each other; a host is a machine on it; an adapter is the hardware of a device,
// which may be opened several times; a wire is the way from one adapter to another, in one direction. Two ports reach each other
// when both are up, their link layers agree and the GIDs are of one type and one subnet (/24 of v4-mapped addresses, else /64), or
// by LID where no GRH is sent.
//
// What is like the hardware, because the provider's correctness hangs on it:
//   - A packet carries the bytes that its sender's memory held when it was sent. It outlives the queue pair and the process's
//     interest in it: only the queue pair, the key and the memory at the far end decide what it does when it arrives.
//   - A queue pair takes packets of its peer's number and address whose sequence number is the next. It cannot tell those of an
//     earlier connection from its own but by that number.
//   - With Device.LazyWrites the acknowledgement of a WRITE overtakes its bytes on their way to memory.
//   - Older sequence numbers are acknowledged and not executed (READs are answered again), newer ones reported once and dropped.
//   - Keys are looked up for each packet, also inside a message, and for each answer to a READ.
//   - A request that is refused ends both queue pairs. Time-outs, retries and receiver-not-ready work as in ibv_modify_qp;
//     7 retries are for ever.
//   - A place in a send or receive queue is free again when a completion that says so was polled, not before.
//   - A key's upper part is used again at once; its lowest byte differs.
//
// Decisions.
//   - One lock and one goroutine (the engine) for a fabric, while a device is open: a packet is taken in, and its bytes placed, as
//     a whole under the lock. So when Reset, Destroy, Fail, MR.Close or an invalidation has returned or completed, no packet is
//     half way. Completion queues have a lock of their own.
//   - Copies are hidden from the race detector (place.go says why).
//   - Real time, but the clock of timers and wires stands still while the process does not get to run: a slow machine makes no
//     packet time out. The seed decides what happens to the packets in the order in which they are sent; that order is the scheduler's.
//   - A window bound on a queue pair that is reset or destroyed stays bound, and its registration cannot be closed before it.
//   - Addresses (GIDs of a type, LIDs) are unique on a fabric; of two ports with the same one some hears the packets.
//   - Memory that is unmapped while it is registered ends the process when a packet comes; real devices have pinned its pages.
//   - Completion queues do not overflow. NewQP counts the room they need against Device.MaxCQE.
//
// Invariants, each with the test that holds it:
//   - WRITE, READ and SEND move exactly their bytes, from and to any pieces: TestBytesMove, TestPieces, TestLoopback; also over
//     wires that lose, double, delay and reorder, each request once: TestFaultyWires, TestSendAfterWrites
//   - with LazyWrites the peer's completion promises no visible byte, a RECEIVE's does: TestLazyWrites
//   - a fence at the side whose memory is written stops held packets, one at the other side does not, and without one they
//     land: TestFencesStopPackets, TestInvalidationStopsPackets, TestFenceInMidMessage, TestReadFences, TestNoLateByte
//   - packets of an old connection corrupt one that counts from the same numbers, and no other: TestReconnectWithOldPackets
//   - a wrong key, range, right, queue pair or protection domain changes no byte and ends both sides with the statuses of real
//     devices: TestRefusals, TestQueuePairWithoutRights, TestRefusalsOfThisSide, TestReceives, TestMismatch
//   - no answer is RetriesExceeded, then Flushed: TestUnreachable; an answer in time goes on: TestPortComesBack
//   - completions: in order, of unsignaled requests only when they fail, none after a reset: TestUnsignaled, TestFaultyWires,
//     TestNothingAfterReset; places in queues: TestPlacesInQueues; READs out: TestReadsWait
//   - what a test may do to a device is seen by who opened it: TestPortsAndEvents, TestRemovedDevice, TestRefusedCalls, TestRate,
//     TestReopen
//   - limits and keys: TestLimits, TestKeys; who reaches whom: TestWhoReachesWhom; waiting: TestNextWaits
//   - no goroutine is left when the last device is closed: TestMain
package softnic
