// Package doctor looks at a host and says what kvxfer can do there, and why not: each check has a verdict, a finding and,
// where something is to be done, a remedy in words. It changes nothing; what it tries (a sealed memfd, a bound port) it gives
// back at once. docs/doctor.md lists the checks.
//
// Terms. A host is what is asked: the file tree as an fs.FS and a few system calls, so that a test can be another machine.
// Verdicts: ok; warn, where kvxfer works and less well or less safely than it could; fail, where it does not work as
// configured.
//
// Invariants, each with the test that holds it:
//   - ids and their order are stable and listed in docs/doctor.md: TestPageListsEveryCheck
//   - a check that warns or fails says what to do: TestTroubleHasARemedy
//   - each finding follows from the host it is about: TestHosts, TestCertificates, TestPorts, TestRegistry, TestDirectories,
//     TestDiskOfADirectory, TestRDMAHosts, TestRDMAAccess, TestRDMAMemory, TestPortsOfDevices, TestMemlock
//   - no finding repeats a secret of the configuration: TestNoSecretIsTold
//   - whatever is missing in /proc and /sys, a check answers: TestEmptyHost
package doctor
