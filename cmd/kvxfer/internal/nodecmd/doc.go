// Package nodecmd is the commands that ask this host's daemon what it knows, and steer it: `kvxfer nodes`, `caches`,
// `blocks`, `leases`, `transfers`, `drain` and `log-level`. docs/commands.md is their reference.
//
// Each command is one function: arguments and writers in, exit code out. What they list comes in pages, so that a cache of
// millions of blocks needs no large answer; what people see is made from the same rows that --json prints.
//
// Invariants, each with the test that holds it:
//   - what each command prints, in words and as JSON: TestGoldenOutputs
//   - every page is fetched, and no more than was asked for: TestPagesAreFetched
//   - exit codes, and that wrong usage asks no daemon: TestUsage, TestFailures
//   - a drain ends by its time and says what is left: TestDrainSaysWhatIsLeft
//   - blocks that are alike are one line, others are not: TestRangesAgreeWithTheBlocks
package nodecmd
