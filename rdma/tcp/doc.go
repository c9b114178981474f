// Package tcp is the provider of the fabric contract over TCP: scatter lists between registered memory of two nodes. Of
// host memory one system call moves many ranges, without a copy in user space unless lanes carry TLS; memory of another
// process (the second way) costs a copy and a call for each range: process.go.
//
// Terms. A lane is one TCP connection of a session; a session has a few, and each operation travels on the one with
// the least to do. Operations become frames (docs/protocol.md has the bytes). A gate stands before every piece
// of memory: of a window at the target, of an operation's local side at the initiator. Payload that nobody may place
// goes to the sink; payload that nobody may read any more is replaced by filler, which is zeros. A result ends an
// operation at its initiator. A lane rests when its reader has given its thread back.
//
// How it keeps the contract. TCP knows nothing of permission, so the side that owns the memory does every access
// itself, in chunks: enter the gate, one non-blocking readv of at most 256 KiB (writev of at most 1 MiB), leave.
// Waiting for the socket happens outside. To take memory back is to shut the gate, which waits for that one system
// call and for nothing else, least of all the peer. The stream stays in step because what remains of the frame still
// travels, into the sink or as filler, and its trailer says so.
//
// Who waits where. A thread that is woken costs more than a small operation, so few are (socket_linux.go, progress.go):
//   - A lane in clear is taken out of package net and the runtime's poller. Its reader waits in poll(2), where the kernel wakes it
//     and nobody else; for the rest of a large payload it sleeps until a good piece has come (SO_RCVLOWAT). Where frames
//     follow one another closely it looks for the next one a little before it sleeps, and gives that up where it does not
//     pay or where others need the processor.
//   - After a second with nothing to read a lane rests: its descriptor lies in one epoll of the provider, which costs no thread.
//   - Whoever posts sends a small operation himself, and a target's reader answers a small READ and says results itself. What the
//     socket does not take, and all that is large, is for the lane's writer, so that several lanes are filled at a time.
//   - A target tells of a WRITE before it would wait, or after a few more that follow without a pause: first the result, which
//     the initiator waits for, then the arrival.
//   - Events are brought (rdma.Deliverer) by the reader that has them, one of a session's at a time; what the user's own call ends
//     comes from a goroutine made for it. Whoever brings is no member of the session's crew meanwhile, so take may call Close.
//   - Who attaches reads himself (rdma.Progressor); the readers stand aside. Frames are received in steps for that, each of
//     which anybody may do next. He should detach while much is under way: he would take a processor from those who copy.
//
// Decisions.
//   - Frames of an operation follow one another on its lane. So a lane receives one operation at a time and keeps
//     nothing for those that were given up, and "ended" needs no message: the next operation simply begins.
//   - A frame's ranges are checked before its first byte. A later frame (beyond 256 ranges or 1 MiB) that is refused
//     leaves the earlier ones placed; the completion says Wrote.
//   - A WRITE to a read window, or the reverse, ends with PermissionDenied.
//   - Empty ranges are dropped in Post; the offsets of one are not looked at.
//   - A refused operation's result is sent at once, and the initiator stops sending it.
//   - A WRITE that is cancelled when all of it is sent may still arrive; its completion says Wrote. The data of a
//     cancelled READ still travels, into the initiator's sink.
//   - A peer that does not read what it asked for is held back, not cut off: the target's reader stops taking frames
//     from that lane. No deadlock can come of it: an initiator's reader never sends and waits for nobody.
//   - Iovecs hold addresses as numbers and name mapped memory only, control buffers included: see iovec.
//   - Locks are ordinary mutexes that are held over one system call. Cancel, and a Post beside it, may wait for that.
//   - A lane may carry TLS (Options.TLSLanes). The kernel cannot place what it cannot decrypt, so such payload is copied twice
//     more, through buffers of the lane (16 KiB in, 64 KiB out) and of crypto/tls; it is placed by a copy of at most 16 KiB inside the
//     gate, and nobody is inside while the socket is waited for. Post never writes there itself, since a record cannot be written
//     in part. A target takes lanes over TLS or in clear, never both, and says which with its parameters; secure.go has it all.
//   - A half-open connection is not noticed here: the nodes' control connection has the heartbeat, and calls Close.
//
// Invariants, each with the test that holds it:
//   - nobody is inside a gate once shutting it returned: TestFenceWaitsForWhoeverIsInside, TestCancelWaitsForWhoeverIsInside
//   - a fence, a deadline or a closed region stops placement in mid-frame, and the lane goes on: TestFenceInMidFrame,
//     TestDeadlineInMidFrame, TestRegionCloseFences
//   - a completed operation's memory is not sent or placed into: TestCancelReleasesTheSourceInMidFrame, TestCancelStopsARead
//   - in random histories exactly the permitted bytes change: TestRandomOpsChangeExactlyWhatTheyMay
//   - every operation completes once, before EventDown: TestPeerDeath; Close never waits for the peer: TestCloseWithAStoppedPeer
//   - Post takes what the window holds, by count and bytes: TestBackPressure
//   - a fault in memory ends one operation, not the lane: TestMemoryFaults, TestHoleInFullTmpfs, TestProcessMemoryFaults
//   - memory of another process keeps the same contract: TestProcessConformance; its death is typed: TestProcessDeath
//   - nobody without the secret gets a lane: TestHelloIsChecked; a malformed frame ends the session: TestMalformedFramesEndTheSession
//   - a peer cannot make a target keep more than a bound: TestAPeerThatDoesNotReadIsHeldBack,
//     TestArrivalsThatNobodyPollsHoldTheLaneBack
//   - no goroutine or descriptor outlives Close: TestProviderCloseLeavesNothing and TestMain
//   - a descriptor is not used behind its close, which would reach somebody else's: TestShutOfAClosedLane
//   - a quiet lane costs no thread and is found by the next frame: TestQuietLanesRest
//   - completions that are fetched wake nobody, and come by themselves when nobody fetches them: TestProgressFetches
//   - results of a burst travel together and none is kept back: TestResultsOfABurst
//   - no allocation for a block: TestNoAllocationPerBlock, TestProcessNoAllocationPerBlock; BenchmarkLists says how many an operation
//     makes, and how fast lists are beside a contiguous stream
//   - all of this holds over TLS too: TestConformanceOverTLS, TestMemoryFaults; nobody's lane is clear where TLS is wanted, and
//     a lane's secret goes to the node that is meant: TestLanesAgreeOnTLS, TestLaneOfAnotherNode
//   - bytes on the wire do not change within a version: TestGoldenFrames
package tcp
