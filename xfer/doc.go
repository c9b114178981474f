// Package xfer is the engine of a node: it holds the clients' regions and caches, grants and ends leases, runs
// transfers and drives the state machines of xfer/protocol with real time, providers, links and the block store.
//
// Terms. A client is an attached process, a region its memory, a cache a region with a layout. A grant is a permission
// given to peers: a lease (one push may write blocks) or an offer (several holders may read blocks, or reach a raw
// region). It lives on the node that owns the memory. A transfer lives on the node that started it: push, pull, or
// scatter of raw memory. A link is a control connection with its payload session; who starts transfers dials it. Blocks
// are HELD while a push or a read lease may have them read.
//
// The engine knows other parts by contract.go only; package internal/node composes them.
//
// An instance's lease is a whole at the node that was asked (the asker), and a part, which is a lease or an offer of the
// rank's client, at each owner. A claim is a BIND that waits for the asker's word: one transfer owns all parts.
//
// Locks, in the order in which they may be taken: a grant's or transfer's own lock, then a whole's, then
// a part's, then a cache's, then an out queue's or a link's, then the engine's, then a region's count of uses. Nothing is called
// back under the engine's lock.
//
// Invariants, each with the test that holds it:
//   - blocks end COMMITTED with the source's bytes, or FREE behind a fence: TestPushOverTCP, TestEveryEndIsTyped
//   - an end that meets a beginning ends it: TestBeginningsMeetTheCachesEnd, TestDrainMeetsBeginnings,
//     TestClientGoneWhileItsRegionIsRegistered, TestClientGoneWhileItsCacheIsRegistered, TestLinkDownMeetsTheAnswer
//   - every lease and push ends with exactly one event, and after it nothing is written: TestRandomTransfers
//   - clients, size classes and transfers share a link fairly, and a small transfer waits for no more of a large one than a bounded
//     window: TestSmallTransferPassesALargeOne, TestCancelledTransferGivesItsRoomToOthers, and package fair; a source's operations are
//     posted in its order, each once: TestOrderInsideASource; a source that is cancelled looks at its own: TestCancelTakesItsOwn
//   - nothing is allocated for a block, by posts or pushes: TestPostsAllocateNothing, TestPushAllocatesNothingForABlock
//   - an operation on its way through the out queue allocates nothing: TestCompletionAllocatesNothing; a queued block takes its ids and
//     little else: TestQueuedBlocksAreCheap
//   - source blocks are HELD until the last completion, also without a link: TestHeldUntilTheCompletion
//   - a fence that fails is never told as a fence, and Close ends all the same: TestFailedFenceQuarantinesTheMemory,
//     TestCloseEndsWithoutCompletions
//   - a peer that breaks the protocol loses its link and hurts nobody else: TestWrongAnswersEndThePush,
//     TestWrongAnswersMeetWhatIsReady, TestEndedWithoutAReason, TestUnknownHandlesAreIgnored, TestBindIsChecked
//   - a second BIND cannot move a fence: TestSecondBindNeverMovesTheFence
//   - a client's memory is unmapped only after the last fence on it: TestClientDeathKeepsMemoryUntilFenced; it is registered
//     again only behind that fence: TestComingBackWaitsForTheFence, TestQuarantinedMemoryIsNotRegisteredAgain
//   - blocks under a lease or held by a push are not leased again: TestBusyBlocksAreRefused
//   - an instance's lease is granted on every rank or on none: TestInstanceLeaseIsAllOrNone; one transfer owns it everywhere:
//     TestSecondTransferIsRefusedOnEveryRank, TestOneTransferWinsEverywhere; it is committed everywhere or nowhere, whoever
//     is lost: TestOneRankFailsTheWhole, TestAskerIsLost, TestWhatIsKeptOutlivesTheAsker
//   - a part is bound only on its asker's word, and what waits for it ends: TestBindWaitsForTheAskersWord, TestClaimEnds; who
//     asks and who grants wrongly changes nothing: TestGrantIsChecked, TestOwnersThatAnswerWrongly
//   - a transfer's older attempt binds nothing, a newer one waits for the fence: TestRetryNeedsAFenceAndAHigherAttempt; what
//     is remembered of them is bounded: TestAttemptsAreBounded
//   - a lookup finds what is COMMITTED now, of caches that fit: TestLookupAgainstNaiveModel, TestKeysAfterARegistration
//   - who opens blocks by their keys reads them held throughout, and uses up nothing of their owner:
//     TestOpenReadsPublishedBlocks, TestOpensHaveTheirOwnQuota
//   - a ticket is bound once, and only with its secret: TestTicketIsBoundOnce; nothing crosses tenants: TestNothingCrossesTenants
//   - no bytes move between caches that differ: TestMismatchMovesNothing
//   - a transfer that names a provider uses no other: TestTransferOverANamedProvider
//   - memory that a provider does not take is registered with the others, on either side its transfers go over those and say why:
//     TestMemoryThatAProviderDoesNotTake, TestMemoryThatNoProviderTakes, TestTargetWithoutTheProvider, TestSourceGoesWithoutTheProvider
//   - a probe tells each way by itself and compares the bytes: TestProbeGoesBothWays, TestProbeShowsWhatIsInTheWay,
//     TestProbeThatGetsNoAnswer, TestProbeComparesBytes; it tells which ways a provider chose: TestProbeTellsOfWays; what a peer can ask for by probes is bounded: TestProbesOfPeersAreBounded
//   - a pull commits what the source held throughout, or leaves its blocks FREE: TestPullOverTCP, TestReadLeaseEnds
//   - a read lease has as many readers as it says: TestReadLeaseHasAsManyReadersAsItSays
//   - a ticket permits what its owner granted, whatever its text says: TestTicketsSayWhatTheyPermit
//   - evict returns when no peer can touch the blocks, and behind the end of an own transfer: TestEvictTakesBlocksBackFromEveryPeer,
//     TestEvictAfterATransfersEnd; TryEvict does it where nobody has to be waited for: TestTryEvictNeverWaits
//   - a transfer over a link that is there has asked the peer when its starting call returns, and finishes by its request where that
//     says so: TestStartAsksThePeer, TestFinishOfARequest
//   - a scatter list moves each byte once and stays inside what is advertised: TestScatterAgreesWithCopy,
//     TestScatterStaysInsideWhatIsAdvertised
//   - a raw region that was taken back is never written again: TestRevokedAdvertisementIsNeverWrittenAgain
//   - an advertisement never holds a drain up: TestDrainEndsAdvertisements
//   - what a peer says is bounded before a client is told, and says nothing of fences: TestLongTextsOfPeersStayShort,
//     TestAbortSaysNothingOfTheFence; what a client or peer repeats fills no table: TestRenewalsDoNotPileUp,
//     TestScatterListsAreBoundedBeforeTheyArePlanned
//   - a part that commits while it is taken back is evicted, whoever is left: TestPartThatCommitsWhileItIsTakenBack
//   - memory with a cache in it is never raw or gone, whichever requests meet: TestCacheMeetsTheRegionsEnd
//   - what is counted for every operation is an atomic addition, that allocates nothing: TestCountingAnOperationAllocatesNothing
//   - metrics say how transfers, leases and fences ended and what is HELD or quarantined, and leave nothing counted behind:
//     TestMetricsOfTransfers, TestMetricsOfFences, TestMetricsOfAFullWindow, and every test of several nodes at its end
//   - what is unfinished says what it waits for, from its machine's state: TestPushSaysWhatItWaitsFor, TestWindowOfOthersIsNamed,
//     TestFailedTransferSaysWhatHoldsItsMemory, TestPullSaysWhatItWaitsFor, TestWriteLeaseSaysWhatItWaitsFor, TestReadLeaseSaysWhoHoldsIt,
//     TestPartSaysWhoDecides, TestInstanceSaysWhichRanksAreMissing
//   - lists come in pages that show everything once, of the caller's tenant, and no secret: TestPagesShowEverythingOnce,
//     TestInspectRefusals, TestRowsHoldNoSecrets; who looks hangs on nobody's lock: TestLookDoesNotHang; what has ended is
//     remembered in a bound: TestPastTransfersAreBounded
//   - a drain that is asked for ends nothing that runs: TestStopGrantingLetsRunningOnesEnd
//   - a trace is gathered from the nodes that its spans name, of the asker's tenant alone, in a bounded answer:
//     TestTraceFollowsTheNamedNodes, TestTraceAnswersAreBounded, TestTraceOfWrongPeers, TestTraceOfIsChecked
//   - a transfer that is not recorded makes nothing for traces but the ids that travel: TestUnrecordedTransferCostsItsIDs
//   - a prepared list is moved by each of its posts, ends as a transfer does, and nothing of it lands afterwards:
//     TestPreparedPostsMoveTheListEachTime, TestPreparedBlocksCommit, TestPreparedEnds, TestPostDeadline; unused, it holds no
//     drain up: TestDrainEndsIdleLists; nothing is committed that was never posted: TestFinishWithoutAPost
//   - a fleet restarts under load without a request lost or a wrong byte: test_rolling_upgrade (test/integration)
//   - nodes agree on durations alone, their clocks may be hours apart: TestClocksHoursApart
package xfer
