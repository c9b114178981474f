// Package incarnation makes one start of a daemon the only user of its state directory, and gives it its epoch.
//
// Terms. An incarnation is one start of a daemon. Its epoch is 128 random bits, compared for equality only: a stored
// counter would repeat after the state directory was wiped. The record is the file that says which process was the last
// incarnation: a process is named by number, start time and boot id, which together never repeat.
//
// Why two guards. The lock (flock) is the quick one, but it alone is not enough: it goes with the file, so a lock file
// that was deleted can be locked a second time while the first process still writes into its clients' memory. So a
// daemon that has the lock also reads the record and, when that process still lives, waits for its exit on a pidfd. It
// grants nothing before. What neither guard sees: a state directory that was wiped as a whole under a live daemon, or
// one that is shared by processes that cannot see each other (other pid namespaces) or count their
// time differently (other time namespaces), where only the lock counts.
//
// Invariants, each with the test that holds it:
//   - while the old process lives, stopped or not, nobody acquires, and the error names its pid: TestWaitsForALiveProcess,
//     TestDeletedLockIsNotEnough
//   - its exit, also by SIGKILL, ends the wait: TestExitEndsTheWait
//   - a number that now belongs to another process, or a record of another boot, holds nobody up: TestReusedNumber
//   - after Close the same process may acquire again, with another epoch: TestCloseAndAgain
//   - the record is replaced as a whole; one that cannot be read is refused, never taken for absent: TestUnreadableRecord
//   - the state directory is nobody else's: TestStateDirectory
package incarnation
