// Package embedded runs a NATS server inside the daemon, for a registry without a server of its own.
//
// The registry's bucket lives in the server's memory: every entry is disposable and written again by its owner, so
// a disk would only add writes and the possibility of finding old entries after a restart. The store directory is
// set all the same, into the node's state directory, because the server wants one; it stays all but empty.
//
// The server installs no signal handler, writes no log file and never ends the process; it speaks through slog, from
// warnings up. Without a listen address it has no port at all and only this process reaches it. With Access it asks for a
// token, a password or a certificate, over TLS where it has a certificate; without, an address other than loop-back opens
// the directory (never a transfer: that needs a ticket) to whoever reaches the port, and is logged as a warning.
//
// Invariants, each with the test that holds it:
//   - without Listen nothing listens: TestInProcessOnly
//   - a port that is taken, and a store directory that cannot be used, are errors of Start: TestPortTaken,
//     TestStoreDirUnusable
//   - with a secret or authorities nobody else gets in, and this process still does: TestAccess
//   - Shutdown ends every goroutine and can be called again: every test (goleak)
package embedded
