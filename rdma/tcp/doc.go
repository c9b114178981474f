// Package tcp is the provider of the fabric contract over TCP: scatter lists between registered host memory of two
// nodes, one system call for many ranges, no copy in user space unless lanes carry TLS.
//
// Terms. A lane is one TCP connection of a session; a session has a few, and each operation travels on the one with
// the least to do. Operations become frames (docs/protocol.md has the bytes). A gate stands before every piece
// of memory: of a window at the target, of an operation's local side at the initiator. Payload that nobody may place
// goes to the sink; payload that nobody may read any more is replaced by filler, which is zeros. A result ends an
// operation at its initiator.
//
// How it keeps the contract. TCP knows nothing of permission, so the side that owns the memory does every access
// itself, in chunks: enter the gate, one non-blocking readv of at most 256 KiB (writev of at most 1 MiB), leave.
// Waiting for the socket happens outside. To take memory back is to shut the gate, which waits for that one system
// call and for nothing else, least of all the peer. The stream stays in step because what remains of the frame still
// travels, into the sink or as filler, and its trailer says so.
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
//   - a fault in memory ends one operation, not the lane: TestMemoryFaults, TestHoleInFullTmpfs
//   - nobody without the secret gets a lane: TestHelloIsChecked; a malformed frame ends the session: TestMalformedFramesEndTheSession
//   - a peer cannot make a target keep more than a bound: TestAPeerThatDoesNotReadIsHeldBack,
//     TestArrivalsThatNobodyPollsHoldTheLaneBack
//   - no goroutine or descriptor outlives Close: TestProviderCloseLeavesNothing and TestMain
//   - no allocation for a block: TestNoAllocationPerBlock
//   - all of this holds over TLS too: TestConformanceOverTLS, TestMemoryFaults; nobody's lane is clear where TLS is wanted, and
//     a lane's secret goes to the node that is meant: TestLanesAgreeOnTLS, TestLaneOfAnotherNode
//   - bytes on the wire do not change within a version: TestGoldenFrames
package tcp
