// Package embed runs a node inside a Go program: what `kvxfer serve` is as a process, as a value with a beginning and an end.
//
// Terms. The host program is the one that calls Start. Its own client is what Node.Client gives: a [kvxfer.Client] of the
// embedded node.
//
// The client talks to the node over its Unix socket, as any process does, and hands its memory over as a memfd: one way, one
// set of tests, the same isolation between tenants, and other processes of the host may attach too. What it saves is the
// second process, not the copy of a frame.
//
// A node that ends with its process ends its promise with it as well: memory that the host program registered the second way
// (AdoptProcess) is within the same process, which changes nothing, and blocks of other processes' clients stay fenced as
// after a crash of a daemon.
//
// Invariants, each with the test that holds it:
//   - two nodes of one program move blocks between their clients: TestTwoNodesInOneProgram
//   - after Close nothing of the node is left, no goroutine, file or descriptor; nor after a start that failed: TestMain,
//     TestStartsAndStops, TestFailedStartLeavesNothing
//   - a wrong field is named as the setting of `kvxfer serve`, all at once: TestWrongFieldsAreNamed
//   - neither KVXFER_* nor OTEL_* is read unless asked: TestEnvironmentIsNotRead
package embed
