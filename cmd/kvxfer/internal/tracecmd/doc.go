// Package tracecmd is `kvxfer trace`: it lists traces and shows one as text, JSON or a picture. The spans come from the
// daemon's memory and, through it, from the other nodes of the trace; or from trace files, which may have been copied from
// elsewhere: then no daemon is asked.
//
// Run is the whole interface: arguments and writers in, exit code out. Exit codes are 0 for success, 1 where a file
// cannot be read or written, a daemon does not answer or a trace is not found, 2 for wrong usage.
//
// Invariants, each with the test that holds it:
//   - exit codes and where the output goes: TestRun
//   - files that the daemon writes are what this reads, several files make one trace: TestShowsWhatTelemetryWrites
//   - what a daemon keeps is shown as what files hold, with a word about what is missing: TestAsksTheDaemon
package tracecmd
