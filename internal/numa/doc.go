// Package numa says how many NUMA nodes the host has and on which one most of a mapping's memory lies.
//
// It is for people and placement: no rule of a transfer reads it. So what cannot be known (a kernel or a container that
// refuses get_mempolicy, memory that this process has not mapped) is left out and never guessed, and so is the node where the host
// has one only: it would say nothing.
//
// Pages are asked for with get_mempolicy(2), which finds a page without reading it and answers with an error where touching it
// would be a signal. At most 32 pages are asked for, evenly apart: some microseconds, whatever the size.
//
// Invariants, each with the test that holds it:
//   - a list of nodes as the kernel writes it is counted, anything else is unknown: TestCount, FuzzCount
//   - the node with most of the samples wins, and nothing that was refused counts: TestMost
//   - memory of this process is on a node that is there: TestThisHost
package numa
