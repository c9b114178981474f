// Package tracecmd is `kvxfer trace`: it lists the traces in trace files and shows one as text, JSON or a picture.
//
// Run is the whole interface: arguments and writers in, exit code out. Exit codes are 0 for success, 1 where a file
// cannot be read or written or a trace is not found, 2 for wrong usage. The command talks to no daemon, so it works
// on files that were copied elsewhere.
//
// Invariants, each with the test that holds it:
//   - exit codes and where the output goes: TestRun
//   - files that the daemon writes are what this reads, several files make one trace: TestShowsWhatTelemetryWrites
package tracecmd
