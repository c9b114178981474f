// Package simtest is a small world for tests of the engine: nodes with the engine's real code, block stores in memory,
// simulated links and the fabric of rdma/simfabric, all on the fake time of a testing/synctest bubble. An hour passes in
// it in no time, and a history goes wrong in ways that no real network can be asked for.
//
// Terms. A World is nodes that can reach each other. A Client is an attached process with one region and one cache in it, a
// Raw one with a region without a cache; either is the engine's Sink and notes each event with its instant. An image is
// what a block, or a byte of a raw region, must hold: a pattern that its owner wrote as soon as it came back, or what a
// transfer that ended well brought. An image stands until the owner gives the memory away again; a byte that differs from
// it came late.
//
// How it is used: inside synctest.Test, NewWorld, then Client, Lease and Push, Offer and Pull, Raw, Advertise and Scatter,
// and what goes wrong (CutLinks, Pause, Kill, Restart, Revoke, Renew, Evict, Drop, Deregister), Pass to let time go by,
// Check to compare every image. The world closes itself at the test's end; the bubble then requires that no goroutine is
// left. A new kind of transfer needs a method here like Pull, a life in TestRandomHistories and ways in TestLateWrites.
//
// What is simulated and what is not. Frames of links are encoded, travel through the fabric's pipes, in order and with its
// delays, and are decoded. A paused node's timers, frames, bytes and events wait until it resumes, as under SIGSTOP; the
// test must not call its engine meanwhile. Calls of clients are direct: package internal/localapi has its own tests. Each
// node's clock may be hours away from the others'. The fabric draws from the seed, the goroutines of the engine do not:
// a seed repeats the calls and the faults, not each interleaving.
//
// Only tests import it (internal/deptest).
//
// What is looked at all the time, besides the images. At a permission's last instant its memory gets an image, known end
// or not, since the clock is permission; a renewal that succeeds moves that instant, and after it none may succeed. A layer
// that is reported is compared with the source's at the push, and of raw memory what a writer brought with its source when
// the owner hears of the writer's end. A byte that a source's owner wrote after its blocks were released, or its read lease
// or advertisement was over, carries a mark that no peer may ever receive, however its transfer ends; a pull or a read that
// ends well holds exactly what the source held when it was offered. Every holder ends once and before its permission. When
// Evict or Deregister has returned, the memory is its owner's at once.
//
// Invariants, each with the test that holds it:
//   - in random histories no image ever changes, what ends well brings the source's bytes as they were, each permission,
//     holder and transfer ends once, typed and in time, what nothing disturbs ends well, a restarted daemon serves what its
//     clients vouch for, blocks under a read lease are not leased for writing, and nothing is left: TestRandomHistories
//   - taken back in any way, memory is never written late, nor read late, while bytes are really in flight: TestLateWrites
//   - that test finds late bytes when gates do not shut: TestLateWritesAreFound
//   - a lease ends at its owner's instant, however far the other's clock is away: TestClocksHoursApart
//   - what a paused node missed does it no harm: TestPausedOwner, TestPausedSource
//   - the memory of clients that are killed is given up at once: TestKilledClientsLeaveNothing
package simtest
