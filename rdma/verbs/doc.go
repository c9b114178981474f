// Package verbs is the RDMA provider of the fabric contract: one-sided WRITE and READ over reliable connections. It knows RDMA as
// package nic describes it; rdma/verbs/internal/ibv is libibverbs, rdma/verbs/internal/softnic a simulation for tests.
//
// Terms.
//   - A rail is a port of this node that is used. A session joins the initiator's rails with the target's (package pick); each
//     pair has a few lanes, and lanes of different rails alternate.
//   - A lane is a queue pair on either side. When one dies it is made anew under the next generation; a lane's number and
//     generation together name a queue pair. Queue pairs of a session are made for it alone.
//   - The side channel is the session's TCP connection (docs/protocol.md, "Verbs", has its bytes): queue pairs, keys and fences are
//     spoken of on it. Its end is the session's.
//   - An operation is cut into parts, each of which travels on one lane; a part into requests: what is contiguous at the peer is one
//     request, what is contiguous here one entry of it (plan.go).
//   - A record is a SEND behind the requests of a batch, on the same queue pair. It lists the parts of WRITEs that end there, and is all
//     that the target's host hears of them. A credit is the target's word that it has taken records and posted receives again.
//   - A binding is a window of the contract as a memory window of the device, on one lane. Devices without memory windows, or where they
//     are switched off, reach memory by its registration's key.
//   - Limbo is where parts are whose queue pair has ended here and, as far as is known, not yet at the target.
//
// How it keeps the contract. The device does every access, so permission is taken back by making the device refuse: a fence climbs a
// ladder until a rung holds. (1) For a short while (Options.Drain) what is under way may end by itself: the initiator was told to revoke and
// answers clean, with the number of WRITEs it saw complete on each lane, which the target compares with the records it took. (2) With
// memory windows the binding is invalidated; the queue pair goes on for other windows. (3) Without, or if the device does not answer, the queue
// pair is reset, unless (1) said that nothing is under way and the key is forgotten. (4) If it cannot be reset it is destroyed; (5) if not that
// either, the whole device is closed. (6) If that fails too Fence returns an error, now and ever after: the memory is in quarantine.
// None of it needs the peer.
//
// A part that was given to a device leaves it in one of two ways: its request, or the record behind it, completes with success; or its
// queue pair is reset here, and then it waits in limbo until the target says that its queue pair of that generation is dead too. Only then it
// is posted again, on whichever lane. So no packet of an old rail is alive when a new one carries the part, and none when its
// operation has completed and the block has moved on.
//
// A device acknowledges a record before its host takes it, and a queue pair that is reset loses what was not taken. So the target says with
// the end of a generation how many records it took, and the initiator repeats the rest of those that were acknowledged on the side channel,
// out of the slots that still hold them.
//
// Decisions.
//   - An arrival is known by a record and by nothing else: no polling of payload, which relaxed ordering would make meaningless, and no
//     WRITE with immediate, whose 32 bits hold neither tag nor window (record.go).
//   - Queue pairs start at random packet numbers, and a reset one keeps its number for some seconds: a packet of an earlier connection
//     finds no queue pair that would take it.
//   - What the target's device would refuse the initiator refuses first (access, outer bounds, a revoked key): a refusal by the device costs the
//     queue pair and everything on it.
//   - Windows are announced when they are granted, not when they are used. A key that was not announced is asked for.
//   - Blocks between a window's outer bounds and its deadline are not looked at by any device (Caps says so); the timer that fences ends a lease.
//   - Cancelled work on a device may end by itself for a few milliseconds before its lane is reset: a reset disturbs others.
//   - A side channel is over TLS when the node has certificates, and else in clear, never both. Payload is always in clear: docs/security.md.
//   - A session whose lanes are all down waits for them (Options.LostAfter) before it ends with PeerLost.
//   - What a session that ended had acknowledged and not taken is not reported any more.
//
// Locks. A session's lock is taken first, then its device's, then the event queue's. Posting, binding and the end of queue pairs happen under
// the session's lock; these calls are bounded. Registrations have a lock of their own that is taken before the provider's.
//
// Invariants, each with the test that holds it:
//   - the whole contract, with memory windows and without: TestConformance, TestConformanceWithoutWindows
//   - each rung of the fence holds when the one below fails, and the last failure stays: TestFenceLadder
//   - in random histories of faults a fenced block is never written, success means in place, each operation completes once and each WRITE
//     that succeeded arrives: TestHistories
//   - a lost rail's transfer finishes on another, and its packets land nowhere: TestRailLostInMidTransfer
//   - so does one on a rail whose device neither completes nor fails what it has: TestStalledRail
//   - a target that takes nothing is not sent more records than it has room for, and no lane breaks: TestTargetThatIsStopped
//   - each byte is in one request, within the device's limits: TestRequestsMoveEachByteOnce, TestSplitKeepsEveryByte
//   - a cancelled operation ends on a rail that neither moves it nor gives it up, whatever became of its window: TestCancelOfWhatLostItsWindow
//   - an operation that the device refuses ends, and what travels with it does not: TestRefusedByTheDevice
//   - nobody without the secret gets a side channel: TestHelloIsChecked; nor in clear, or of another node, where TLS is wanted: TestSideChannelsOverTLS
//   - a peer that breaks the protocol loses its session and nothing else: TestAbuseOfATarget, TestAbuseOfAnInitiator; what cannot be done
//     for it is said of the lane: TestLanesThatCannotBeOpened, TestEveryLaneOfASession
//   - a peer cannot make this side keep more than a bound: TestAPeerThatDoesNotReadLosesItsSession
//   - a cut side channel ends everything, and packets under way land nowhere: TestSideChannelCut
//   - limits of memory, queue pairs and addresses are typed errors: TestLimitsOfDevices
//   - no allocation for an operation or a range: TestPostDoesNotAllocate
//   - no goroutine outlives Close: TestMain
//   - bytes on the wire do not change within a version: TestGoldenFrames; they are read as they were written: TestMessagesSurviveTheWire,
//     TestLimitsOfMessages, TestGarbageIsRefused
package verbs
