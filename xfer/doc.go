// Package xfer is the engine of a node: it holds the clients' regions and caches, grants and ends leases, runs pushes
// and drives the state machines of xfer/protocol with real time, providers, links and the block store.
//
// Terms. A client is an attached process, a region its memory, a cache a region with a layout. A lease lives on the
// node that owns the blocks (the target), a push on the node that reads them (the source). A link is a control
// connection with its payload session; the source dials it. A source's blocks are HELD while an operation may still
// read them.
//
// The engine knows other parts by contract.go only; package internal/node composes them.
//
// Locks, in the order in which they may be taken: a lease's or push's own lock, then a cache's, then an out queue's or
// a link's, then the engine's. Nothing is called back under the engine's lock.
//
// Invariants, each with the test that holds it:
//   - blocks end COMMITTED with the source's bytes, or FREE behind a fence: TestPushOverTCP, TestEveryEndIsTyped
//   - an end that meets a beginning ends it: TestBeginningsMeetTheCachesEnd, TestDrainMeetsBeginnings,
//     TestClientGoneWhileItsRegionIsRegistered, TestClientGoneWhileItsCacheIsRegistered, TestLinkDownMeetsTheAnswer
//   - every lease and push ends with exactly one event, and after it nothing is written: TestRandomTransfers
//   - source blocks are HELD until the last completion, also without a link: TestHeldUntilTheCompletion
//   - a fence that fails is never told as a fence, and Close ends all the same: TestFailedFenceQuarantinesTheMemory,
//     TestCloseEndsWithoutCompletions
//   - a peer that breaks the protocol loses its link and hurts nobody else: TestWrongAnswersEndThePush,
//     TestEndedWithoutAReason, TestUnknownHandlesAreIgnored, TestBindIsChecked
//   - a second BIND cannot move a fence: TestSecondBindNeverMovesTheFence
//   - a client's memory is unmapped only after the last fence on it: TestClientDeathKeepsMemoryUntilFenced
//   - blocks under a lease or held by a push are not leased again: TestBusyBlocksAreRefused
//   - a ticket is bound once, and only with its secret: TestTicketIsBoundOnce
//   - no bytes move between caches that differ: TestMismatchMovesNothing
//   - nodes agree on durations alone, their clocks may be hours apart: TestClocksHoursApart
package xfer
