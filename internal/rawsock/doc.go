// Package rawsock makes the calls on sockets that every small message needs, on the caller's own thread and without Go's
// scheduler knowing of them.
//
// Sending. To leave a small frame to a goroutine that writes costs more than the write: another thread is woken for it, often on
// a processor that sleeps. So who has something to say says it, and only what the socket does not take at once is left to somebody
// who may wait.
//
// Calls. Before a system call Go tells its scheduler, since the call might block, and where the process was idle that wakes a
// watching thread which then looks around every 20 us. For a daemon that is woken for each message this was a fifth of all its
// processor time. The calls here are made on descriptors of Go's poller, which never block, so the scheduler need not know; what
// has to be waited for is waited for in the poller as ever, and deadlines and Close work.
//
// In a build with the race detector the calls are syscall's own, because the detector knows that those order what comes before a
// write and what comes after the read of it.
//
// Invariants: Send never waits, and says how much was taken (TestSendTakesWhatFits); it allocates nothing, nor does Receive
// (TestNothingIsAllocated); deadlines are for Receive, which waits, and do not concern Send (TestDeadlines); what is closed by
// either side is an error or the end of the stream, also while Receive waits (TestClosed); descriptors come with their bytes
// (TestReceiveDescriptors).
package rawsock
