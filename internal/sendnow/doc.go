// Package sendnow writes to a socket what it takes without waiting, on the caller's own thread.
//
// To leave a small frame to a goroutine that writes costs more than the write: another thread is woken for it, often on a
// processor that sleeps. So who has something to say says it, and only what the socket does not take is left to somebody who
// may wait.
//
// Invariants: Send never waits, and says how much was taken (TestSendTakesWhatFits); it allocates nothing
// (TestSendAllocatesNothing); deadlines of the connection, which are for those who wait, do not concern it
// (TestDeadlinesDoNotConcernIt); what is closed by either side is an error (TestClosedIsAnError).
package sendnow
