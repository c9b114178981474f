// Package simfabric is a fabric in memory whose every delay, loss, copy and late byte is drawn from a seed. It is for
// tests: the engine's real code runs on it, and it passes the conformance suite like a provider that ships.
//
// Terms. A packet is what travels: a chunk of a WRITE, the request or the answer of a chunk of a READ, a result. It is
// sent at an instant, spends time in the fabric and is delivered. A lost packet is sent again after Faults.Retry; after
// Faults.MaxLosses losses of one packet its session is lost, as a reliable transport gives up. A held packet is
// delivered very late; a late copy follows a packet that was delivered in time. A paused node neither sends, places nor
// reports events, and what reaches it is kept until it resumes. A dead node is paused for ever, and its peers hear of it.
//
// What the fabric forgets and what it does not. Packets outlive everything: the completion or cancellation of their
// operation, the fence of their window, the end of their session, the close of their region. A target recognises what it
// has placed already as long as window and session stand (as a queue pair knows its sequence numbers while it lives); from
// the moment the owner takes the memory back, nothing but the window's gate stands between a packet and the memory.
// So the build tag kvxfer_nofence makes bytes land late here.
//
// Time. Packets move on Options.Clock: a SimClock that only its owner moves, or real time. The deadlines of a node's
// windows are compared on the node's own clock (NodeWithClock), which may be hours away from the others'.
//
// Decisions.
//   - One lock for the whole fabric and one list of events in the order (instant, number): that is what makes the order of
//     events the only input besides the seed. It is no measure of speed.
//   - A WRITE's chunk is copied when it is sent, into memory of the packet's own: a packet that lands after its source has
//     been given back must carry the old bytes. This is the one provider that copies payload through the Go heap.
//   - The ranges of an operation are checked as a whole at its first packet, as if each packet carried them all.
//   - Connect takes no time, except that it waits for a peer that is paused or dead.
//   - Stall holds back what is to be delivered, not the news that a session has ended: that is each side's own time-out.
//
// Only tests import it (internal/deptest).
//
// Invariants, each with the test that holds it:
//   - the contract of package rdma, under several seeds and mixes of faults: TestConformance
//   - the same seed and the same calls give the same history, another seed another: TestSameSeedSameHistory
//   - each fault happens, and a history with all of them moves exactly the permitted bytes: TestEveryFaultHappens
//   - packets outlive completion, fence, cut and close, and only the gate stops them: TestLatePacketsMeetTheGate
//   - a paused node does nothing and loses nothing; a dead one is heard of: TestPauseKeepsEverything, TestDeathIsHeardOf
//   - a session dies of its losses: TestLossesEndASession
//   - pipes keep order and lose nothing until they are cut: TestPipeKeepsOrder
//   - timers of a SimClock fire in order, and only when it is moved: TestSimClock
package simfabric
