// Package eventqueue is the queue between a provider and whoever polls it: rdma.Provider's Poll and Wait.
//
// Terms. Who serves a target's peer is held back while the queue is full, because a peer may make one arrival after
// another; what an initiator queues is bounded by its window and never waits.
//
// Invariants, each with the test that holds it: events come out in the order they went in, whatever the ring does meanwhile
// (TestOrderThroughGrowth); Wait misses no Push (TestWaitMissesNothing); Hold ends with room or with its session
// (TestHold); after Close what is due is still given, then Closed (TestClose).
package eventqueue
