// Package node composes a daemon: the one place that knows every implementation. It starts the parts in the order in
// which they need each other and ends them in the order that keeps the promises: stop granting, drain, fence, close.
//
// Invariants, each with the test that holds it:
//   - nothing is granted before the former process on the state directory is gone: incarnation's
//     TestWaitsForALiveProcess, test/integration test_second_daemon_waits_for_the_state_directory
//   - after Close no peer can touch a client's memory, and nothing of the node is left: TestNodeStartsAndStops;
//     nor after a start that failed: TestFailedStartLeavesNothing
//   - a peer that is linked and says nothing takes bounded memory, and a Speaker is a peer like others: TestIdlePeersAreCheap
//   - caches that come and go while the registry is away do not pile up: TestDirectoryKeepsTheLastWord;
//     nor is the last word on one given up while a heartbeat holds it up: TestDirectoryOutwaitsTheHeartbeat
//   - /metrics shows what package instrument lists, also while the block store's disk stands still: TestNodeShowsTheListedMetrics,
//     TestStoreThatHangsIsReadOnce
//   - the counters of RDMA ports are shown as /sys has them, under the listed names, and not at all where there are none:
//     TestPortsAreMeasured, TestEventsOfPortsAreTheListed
//   - lists of nodes and caches come in pages that show each name once, and are bounded: TestPagesByName, TestCacheRowsAreBounded
//   - a drain that is asked for is told to everybody and ends nothing; the log's level is changed where it is the node's, and each
//     change is in the log: TestLogTellsOfItsLevel,
//     TestOperatorSteersTheNode
//   - a build whose gates never shut says at its start that it must not be used: test/integration test_late_writes_are_found
//   - a provider that this host cannot use is left out, told once, in the status and to peers that have it, unless it was named:
//     TestUnusableProviderIsLeftOut, TestNamedProviderMustWork, TestProviderThatOnePeerLacks
//   - every provider can be checked without a daemon, and nothing is left of it: TestProvidersAreChecked;
//     nor of a pair that is measured, whose bytes are compared: TestStreams
//   - what the operator is told of the node holds no password, no ticket and no key: TestReportsHoldNoSecret,
//     test/integration test_support_holds_no_secret
//   - an idle node uses less than 1% of a core: test/integration test_idle
package node
