// Command copier is a tapwire driven by lines on standard input, for tests that are not in Go:
//
//	copier TAP TAP
//
// It says "open" when the devices are joined and answers each line with one line: hold, release, drop, cut, mend, stats,
// faults SEED DELAY JITTER LOSS DUPLICATE REORDER (durations as Go writes them). It ends with its input.
package main
