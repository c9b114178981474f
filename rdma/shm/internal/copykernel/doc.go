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
//   - A streaming copy goes through both halves of a step by turns. On the AMD Zen 4 that was measured, one core was 1.2 to 1.4
//     times as fast as in one line with a prefetch 1 KiB ahead, for steps of 8 KiB to 1 MiB. Two lines of reading keep more of the
//     memory busy; lines that are a mere 4 or 8 KiB apart in long steps were slower than one; four were no better, and neither were
//     stores of 64 bytes (AVX-512).
//   - Up to aheadMax a step fetches the next one's beginning while it is copied: what the processor fetches ahead by itself ends with
//     the page. Lists of 4 KiB were 1.2 times (in the caches) to 2 times (not) as fast as without, and faster than plain copies
//     from 256 bytes on; longer steps gained nothing.
//   - Streamed stores fill whole cache lines, and no plain store meets a line of theirs: one that does waits for all of them, which at
//     4 KiB costs five times the copy. So the ends of a step that fill no line are stored plainly and nothing else.
//   - StreamFrom is about what a core's own cache holds: what is smaller is likely to be read while it is there.
//
// Invariants, each with the test that holds it:
//   - exactly the bytes of the steps change, for all sizes and alignments, and they are the source's: TestCopyIsCopy, FuzzCopy
//   - a fault is a typed error that names the side, and the process goes on: TestTruncatedInMidCopy, TestHugePagesAreUsedUp,
//     TestProtectedPages
//   - a punched hole is zeros, no fault: TestPunchedHole
//   - no allocation: TestCopyAllocatesNothing
package copykernel
