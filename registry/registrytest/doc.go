// Package registrytest is the suite that every registry.Directory passes.
//
// An implementation gives a Harness and calls Run from a test of its own. Waits are for conditions and generously
// bounded; nothing depends on how fast the machine is, except that a heartbeat must get through within the time to
// live that the harness chose.
//
// A node that dies is played by Close with a context that has already ended: such a Close withdraws nothing.
//
// The suite is held by natskv's TestConformance, which runs it on a real server.
package registrytest
