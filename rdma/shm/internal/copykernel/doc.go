// Package copykernel copies lists of pieces between memory that may vanish: a client can punch holes into its memory
// object, truncate one that is not sealed, or use up the huge pages behind it, in the middle of a copy.
//
// Terms. A step is one piece: destination, source, length. A streaming copy stores past the caches (non-temporal): the
// destination is read by somebody else, later, and what would be evicted for it is used by others now.
//
// Why Go and assembly: a fault inside a C function ends the process, one inside Go (assembly included) is a panic under
// debug.SetPanicOnFault, which Copy recovers into a *Fault.
//
// Decisions.
//   - Addresses are numbers. As pointers they would have the collector look at memory that its owner may unmap.
//   - Steps shorter than streamMin are copied plainly also in a streaming copy.
//   - A streaming copy ends with SFENCE before Copy returns, because non-temporal stores are ordered by nothing else: whoever
//     sees what the caller stores afterwards sees the bytes.
//   - A streaming copy goes through both halves of a step by turns and has no prefetch instruction. On the AMD Zen 4 that was
//     measured, one core was 1.2 to 1.4 times as fast as in one line with a prefetch 1 KiB ahead, for steps of 8 KiB to 1 MiB.
//     Two lines of reading keep more of the memory busy; lines that are a mere 4 or 8 KiB apart in long steps were slower than
//     one; four were no better, and neither were stores of 64 bytes (AVX-512).
//   - StreamFrom is about what a core's own cache holds: what is smaller is likely to be read while it is there.
//
// Invariants, each with the test that holds it:
//   - exactly the bytes of the steps change, for all sizes and alignments, and they are the source's: TestCopyIsCopy, FuzzCopy
//   - a fault is a typed error that names the side, and the process goes on: TestTruncatedInMidCopy, TestHugePagesAreUsedUp,
//     TestProtectedPages
//   - a punched hole is zeros, no fault: TestPunchedHole
//   - no allocation: TestCopyAllocatesNothing
package copykernel
