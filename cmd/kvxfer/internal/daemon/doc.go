// Package daemon is how a command asks the daemon of its host: one connection to the local socket, one request at a
// time, every answer by its deadline. It is an observer: it hands no memory over, takes no events, and is served while the
// daemon drains; programs use sdk/go.
//
// Invariants, each with the test that holds it:
//   - a request's answer or a typed error comes by the context's deadline: TestEveryCallEnds
//   - what is no daemon's socket is said so, with the path: TestNobodyThere
//   - the process that is told is the one that listens: TestPIDIsTheListeners
package daemon
