// Package kvxfer is the Go SDK: it attaches a process to its node's daemon, hands KV caches over, and moves their blocks to and
// from other nodes by one-sided writes and reads. A block that its owner took back is never written again.
//
// Terms. A cache is memory with a [Layout]; a block is a number of tokens' K and V in every layer, under one id. A lease is
// permission for one transfer to write given blocks until a time; its ticket travels with the request to whoever writes. A push
// writes own blocks to a lease's, a pull reads a read lease's into own ones. A region is raw memory without a layout. HELD is
// memory that a transfer may still touch. The guarantee of memory is full, or "live-client-only" where it was handed over the
// second way (AdoptProcess). ARCHITECTURE.md has the rest.
//
// Contexts. The context of Lease, Write or Read bounds the call that starts it, and its deadline the transfer; the context of
// Wait ends only the waiting. The start of a transfer ends after the client's time-out too ([WithTimeout]). Everything is safe
// for concurrent use.
//
// Memory. What the SDK allocates is a sealed memfd, mapped here and by the daemon. What exists already is adopted: anonymous
// pages of unix.Mmap become a memfd's where they are ([AdoptShare]), the caller's own memfd is handed over as it is
// ([AdoptMemfd]), and anything else, Go's heap too, is reached inside the process ([AdoptProcess]). Slices of memory that was
// given back by [Cache.Drop] or [Client.Close] must not be used where the SDK allocated it: it is unmapped.
//
// Errors are [*Error]; the tree of sentinels is drawn at ErrRequest.
//
// A client has a reader and a writer, two goroutines, and none a call: the reader acts upon the daemon's frames in their order,
// and the writer sends what the kernel did not take at once, so that no caller waits for a daemon that does not read. Between a
// lost connection and [Client.Reconnect] the reader waits for the exit of the daemon's process, which releases what it held.
//
// The Python SDK has the same calls under the same words. What differs does so on purpose: Revoke and Renew wait, as the
// context says, where Python returns a pending thing, so that [Client.Completed] reports leases, advertisements and transfers
// alone; a traceparent is the context's ([ContextWithTraceparent]); fileno is a channel (Done, [Lease.Layer],
// [Client.CompletedReady]); unadvertise is Revoke, and a region's array its Memory; lease with mode "read", or of an instance,
// is a method of its own; and views end with their memory, which Python keeps mapped for as long as there is one: slices have
// no owner that could tell.
//
// Prepared. A list of blocks or ranges that is moved more than once is prepared ([Cache.PrepareWrite], [Cache.PrepareRead], and
// a [Region]'s): [Prepared.Run] then moves it without a request, a ticket or an allocation, through memory that the client and its
// daemon share ([Prepared.Way]); [Prepared.Finish] commits it. One goroutine of those that wait sleeps for all of them.
//
// Package sdk/go/embed runs a node inside the program.
//
// Invariants of clients, each with the test that holds it:
//   - blocks and raw bytes arrive as they were, whichever way, and every end is typed: TestTransfers, TestInstance
//   - every call ends by its context's deadline or a default that it names: TestEveryCallEnds, TestDialEnds; leases and transfers
//     by their own too: TestDeadlinesOfTheirOwn, TestRenewal
//   - an error says no more than is known: TestNothingWasSent, TestFailedEvictionIsHeld, TestPendingMayHaveWritten
//   - what was granted after its caller had gone is taken back: TestLateAnswersAreUndone
//   - memory counts as released only by the daemon's word, its memory's return or its process's exit: TestFailedFenceIsHeld,
//     TestDaemonKilled, TestDaemonShutsDown
//   - a lost daemon ends everything pending, and Reconnect hands over again what is still vouched for: TestDaemonKilled,
//     TestDaemonShutsDown, TestConnectionCut; so does Close, for good: TestClosedClient
//   - no caller waits for a daemon that does not read; what is queued is bounded and arrives whole: TestDaemonThatDoesNotRead,
//     TestLostWhileQueued
//   - Push.Layer is one frame without an allocation: TestLayerAllocatesNothing, BenchmarkLayer
//   - any number of goroutines may share a client: TestManyGoroutines, TestAnswersInAnyOrder
//   - wrong arguments are named: TestWrongArguments
//   - a layer's channel is closed when the layer is there and when the lease has ended: TestLayersInASelect
//   - a daemon that is stopped costs each call its deadline, and releases nothing: TestStoppedDaemon
//   - a read from a holder changes nothing before its second request: TestReadFromHolder
//   - what is not the protocol ends the connection, what is newer is passed over: TestViolations, TestNewerDaemon, FuzzFrames
//   - a call's span says its course and is not lost: TestSpansOfCalls
//   - what has ended is reported once, and does not pile up: TestCompletedIsBounded
//   - a prepared transfer moves its list as often as it is posted, whichever way; taken back, it writes no more: TestPrepared,
//     TestPreparedArguments
//   - every post ends by its deadline, with the daemon's reason, or with its loss: TestPostsKeepTheirDeadlines, TestFailedPosts,
//     TestLostDaemonEndsPosts; posts that nobody waits for keep no place: TestLateEndsFreeTheirPlaces
//   - a post on the ring allocates nothing: TestRunAllocatesNothing; without a ring posts go over the socket, and an older
//     daemon is told from one that fails: TestDaemonWithoutRings, TestOlderDaemonKnowsNoPrepared
//   - no goroutine is left behind, and no descriptor: TestMain, TestFailedDialLeavesNothing
//   - neither NATS, Pebble nor cgo is linked: internal/deptest
//
// Invariants of memory, layout, keys and spans, each with the test that holds it:
//   - an error matches its row of the table, its group, and the context that was its cause: TestErrorsMatchTheirRowAndGroup,
//     TestContextIsTheCause
//   - what is allocated passes the daemon's checks, and both see each other's writes: TestAllocatedMemoryIsTheDaemonsToo
//   - a descriptor that travels stays the memory's where that is given back meanwhile: TestDescriptorOnItsWayIsNobodyElses
//   - a size that the machine does not have is refused before a page is touched: TestHugeSizesAreRefusedFirst
//   - adopted memory keeps its contents and address, for readers too, or is refused: TestAdoptedMemoryKeepsContentsAndAddress,
//     TestAdoptionOfSeveralChunksUnderReaders, TestWhatCannotBeSharedIsRefused
//   - memory has one owner, and what is not known to be fenced keeps it: TestMemoryIsAdoptedOnce,
//     TestMemoryThatIsNotFencedStaysClaimed
//   - views, shapes and keys are those of the Python SDK: TestViewAgreesWithNaiveModel, TestLayoutAgreesWithPython,
//     TestChainKeysAgreeWithPython (vectors in sdk/testdata)
//   - lists of blocks are checked whatever their type, and cost no allocation a block: TestBlocksOfAnyInteger,
//     TestBlocksAreChecked, TestPackingAllocatesNothingPerBlock
//   - a span is of the context's trace or of the ticket's, and never costs a connection: TestSpanBelongsToTheContext,
//     TestSpanWithoutAContext, TestSpanLimits
//   - a trace that begins here is recorded as OpenTelemetry's SDKs would: TestSamplingAgreesWithOpenTelemetry,
//     TestSamplingOfAClient
package kvxfer
