// Package rdma is the contract of a one-sided fabric: what a provider (shm, verbs, tcp, and simfabric for tests) promises
// and what its users may rely on. It holds no implementation, goroutine or socket.
//
// Terms. A region is memory registered with a provider. A session joins two nodes in one direction: the initiator
// posts operations, the target grants windows. A window is permission, for one session, to write into or read from
// parts of one region until it is fenced or its deadline passes; the initiator names it by its key. An operation
// moves a scatter list of ranges; it ends in exactly one completion at the initiator. An arrival tells the target
// that all bytes of one WRITE are placed and visible. A fence ends a window.
//
// A session has a direction so that each direction is a fence domain of its own: taking memory back from a peer
// never disturbs what this node itself is sending there. Two nodes that push both ways have two sessions.
//
// Invariants that every provider keeps. The conformance suite rdma/fabrictest holds each; the test is named behind it.
//   - No late byte: after Fence of a window returned nil, no byte of any operation on it lands, whatever was in flight,
//     delayed or posted again (FenceUnderLoad, NoLateByte). Of a READ: no byte that the memory got after the fence comes
//     to its initiator in an operation that completes with success (FenceStopsReads). A provider whose initiator reads the
//     memory itself (shm) cannot stop it without waiting for it, but it can void what was read. The same holds for the local
//     memory of a WRITE that a target reads by itself, after a completion that did not wait for the target.
//   - Deadlines are permission, not timers: a provider that places in software compares the clock for every chunk;
//     Caps.ChecksDeadline says so. The operation ends with LeaseExpired (DeadlineStopsPlacement,
//     DeadlineInMidOperation).
//   - Bounds: a byte outside a window's bounds is never touched, and the rest of such an operation neither; the
//     operation ends with OutOfBounds (OutOfBounds, RegionEnd). An unknown or fenced key ends it with StaleKey
//     (StaleKey), a window of the other access with PermissionDenied (AccessIsOneWay).
//   - Exactly one completion per posted operation, whatever happens to session, peer or provider (EveryOpCompletes).
//   - A completion, of any status, means that the provider touches the operation's local memory no more
//     (CompletionReleasesSource).
//   - A WRITE completes with success only after all its bytes are placed in the target's memory, and its arrival is
//     reported at the target after the bytes are visible there (ArrivalAfterBytes). Order between operations is not
//     promised; an arrival may be reported twice (a provider that fails over places twice), so users count distinct tags.
//     A WRITE of 0 bytes arrives too; a READ or a failed WRITE does not.
//   - Post never blocks: a full window, by count or bytes, shows as n < len(ops) (BackPressure). An operation of more
//     bytes than the window is taken when nothing is in flight (LargerThanTheWindow).
//   - Local memory of a READ is placed by the initiator's own provider, so Cancel and Close fence it (CancelStopsRead, NoLateByte).
package rdma
