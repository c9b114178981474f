// Package command is what every kvxfer command shares: flags before and after arguments, exit codes, tables for people
// and JSON for programs.
//
// A command writes its answer to stdout and everything else to stderr. With --json an answer is one JSON value, and a
// failure is one too, on stderr: {"error": {"code", "op", "detail", ...}}, as in docs/errors.md.
//
// Invariants, each with the test that holds it:
//   - flags are taken on both sides of arguments, what is not known is refused with exit code 2: TestFlagsAnywhere
//   - columns line up, whatever is in them: TestTableLinesUp
//   - a failure says the same in words and as JSON: TestFailureBothWays
package command
