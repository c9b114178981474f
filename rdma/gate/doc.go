// Package gate is the fence of every provider that places in software: what stands between a byte and the memory.
//
// Whoever is about to touch memory enters the gate and leaves it after one bounded step (a system call that does not
// block, a copy of a chunk); whoever takes the memory back shuts it, which waits for those inside and lets nobody in any
// more. After Shut returned nobody is inside and nobody will be.
//
// Invariants: after Shut, Enter refuses for ever (TestShutIsForEver); Shut returns only when nobody is inside
// (TestShutWaitsForThoseInside); TryShut shuts an empty gate and waits for nobody (TestTryShutDoesNotWait); the deadline is compared at every Enter, so a late timer permits nothing
// (TestDeadlineIsComparedAtEveryEntry).
//
// The build tag kvxfer_nofence makes gates that never shut. It exists so that the tests of late writes can show that they
// find them (package xfer/simtest, and test_late_writes_are_found over real daemons); such a daemon says at its start that
// it must not be used.
package gate
