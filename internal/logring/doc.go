// Package logring keeps the last lines of a log in memory, for who asks a daemon what it said: its own log goes wherever
// whoever started it has sent it. What may not be logged is not in here either.
//
// Invariants, each with the test that holds it:
//   - the last lines are kept, by number and by bytes, whole: TestTheLastLinesAreKept
//   - every record goes on to the log behind it, with its attributes and groups: TestRecordsGoOn
package logring
