// Package doctorcmd is `kvxfer doctor`: what this host can do and why not, and with --peer what the way to another node
// carries. docs/doctor.md is its page.
//
// Invariants, each with the test that holds it:
//   - without a daemon the host is checked all the same, providers included, and a failed check is exit code 1: TestHostWithoutADaemon
//   - a provider that this host or the daemon cannot use, or not with some memory, is told by what was wanted: TestVerdictsOfProviders
//   - a step's outcome has a verdict by its error and provider, and what went wrong a remedy: TestVerdictsOfSteps
//   - a provider that one side lacks is named with the side, and moves nothing: TestPeerReport
//   - both outputs say the same: TestPeerReport, TestPeerReportTellsOfWays, TestHostWithoutADaemon
//   - between two real daemons each way is tried and told by itself: test/integration test_doctor.py
package doctorcmd
