// Package localapi serves the local protocol: clients on a Unix socket, their descriptors, their requests and what the
// engine tells them. docs/protocol.md gives the bytes.
//
// An observer is a connection that asks about the daemon alone: the engine does not know it. An operator is a user who may
// see every tenant and steer the daemon.
//
// Terms. A client is one connection of one process. A quick kind (PUSH_LAYER, PUSH_FINISH, PUSH_CANCEL, REVOKE, SPANS,
// PING, STATUS) is acted upon where it is read; every other request goes through the client's queue. A prompt one (PUSH, PULL, SCATTER,
// LEASE, ADVERTISE, and EVICT where nothing has to be fenced, with a short list) waits for nobody: it is run where it is read, too,
// where the queue is empty and runs nothing, because to wake a goroutine for it takes longer than most of them do.
//
// Order. The queue runs one request of a client at a time, in the order of arrival, because DROP_CACHE, then
// DEREGISTER_REGION, or EVICT, then LEASE, may be sent without waiting for the answers between them. Several of these
// wait for a fence; quick kinds overtake them, so that a layer that is ready never waits for another cache's end. That
// changes nothing for the client: a quick kind names a lease or a transfer, whose number was in an answer already.
//
// Whoever has an answer or an event writes it, as far as the socket takes it at once; the writer has what is left.
//
// A client's goroutines are: one reader, one that runs the queue, one writer, one that watches its process, and with a ring
// one that takes posts out of it, which sleeps when there are none. A
// client that reads too slowly costs itself only: events are queued, never waited for, and beyond a bound of frames or
// bytes, or when the socket takes nothing for a time, the client is cut off.
//
// The death of a client is the end of its connection or of its process, whichever is seen first: forked children hold
// sockets open. The process is the one that connected, in whichever pid namespace: the kernel hands its pidfd out by the
// socket (Linux 6.5). On older kernels it is opened by the number in SO_PEERCRED, and one without a number here cannot
// be watched; HELLO_OK and a log line say so. The pid in HELLO is the client's own word, and only for traces.
//
// Invariants, each with the test that holds it:
//   - REPORT is answered to root and the daemon's own user alone: TestReportsAreTheOperators
//   - a live socket is never taken from its owner, a stale one is: TestSocketFile, TestSocketOfAnotherProgram
//   - a user who is not allowed gets PermissionDenied and nothing else: TestCredentials
//   - HELLO comes first and soon: TestHello, TestHelloTimeout
//   - every answer has its request's id, violations end the connection with id 0: TestRequests, TestViolations
//   - no descriptor leaks, whatever is sent: TestDescriptors, FuzzConnection
//   - where the process has no descriptor left, who comes and who hands one over is told so: TestNoDescriptorIsLeft
//   - slow requests keep their order and hold up no layer: TestQuickKindsOvertake, TestRequestQueueIsBounded
//   - prompt requests take turns with the queue's and overlap none: TestPromptRequestsKeepTheirTurn, TestLargeRequestsAreQueued
//   - frames that several goroutines write at once stay whole and in each one's order: TestManyWriters, TestEventsKeepTheirOrder
//   - what waits for other nodes holds up nothing, and a lease of an instance is answered before its first event:
//     TestLongRequestsHoldUpNothing, TestKeysAndInstances
//   - the answer to LEASE and PUSH comes before their events: TestAnswerComesBeforeEvents
//   - a client that does not read is cut off, and the engine never waits: TestClientThatDoesNotRead, TestWriteTimeout
//   - ClientGone comes once, last, on EOF and on the process's exit: TestClientGone, TestProcessExit
//   - no number is taken for a process that cannot be seen, and the client is told: TestUnseenProcess
//   - every error that a client is told is counted: TestEveryErrorIsTold
//   - an observer is no client of the engine, is served while it drains, and reaches no memory: TestObserver; operators get in as
//     observers where all places are taken, others do not: TestMaxClients
//   - a drain is waited for beside the queue, by its own time: TestDrainIsWaitedForBesideTheQueue
//   - only root and the daemon's own user see other tenants, drain and set the log's level: TestOperatorIsAskedForWhoMay
//   - posts of prepared lists come over the ring and over the socket, and end on the way they came: TestPostsOverTheRing,
//     TestPostsOverTheSocket; a ring that is handed over wrongly leaves nothing: TestRingIsChecked
//   - a frame takes no allocation for each block in it: TestFramesAllocateNothingForABlock
//   - a client that always has a next post holds up no completion: TestBusyClientHoldsNoCompletionsUp
//   - nothing is left after Close: TestClose, and goleak over all tests
package localapi
