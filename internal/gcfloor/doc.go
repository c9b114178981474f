// Package gcfloor keeps a process with a small heap from collecting garbage all the time.
//
// Go's collector begins when the heap has grown by a share of what lives. A daemon lives in about 10 MB, so under many small
// transfers a collection came every few hundred of them, and each wakes threads on every processor. With a floor it waits until the
// heap has that size; above it Go's own rule holds. Pools and buffers are what they were: only the garbage between two collections
// grows, so the process holds up to the floor more memory than it did.
//
// Whoever set GOGC or GOMEMLIMIT has decided otherwise, and is left alone.
//
// Invariants: a floor makes the share larger, never smaller than Go's, and only where the heap is small (TestShare); the user's
// word goes first (TestUsersWord); it follows the heap (TestFollowsTheHeap).
package gcfloor
