// Package peertls is mutual TLS 1.3 between nodes: one node's certificate, its key and the authorities that it trusts, from
// files that are read again when they change.
//
// Terms. A set is what the three files hold together at one moment. An identity is a node's current set and the files it
// came from. A certificate names a node when one of its DNS names equals the node's name, letter for letter and without
// wildcards, or one of its URIs is "kvxfer:node/NAME". Addresses count for nothing: a ticket speaks of a node, nodes are dialed
// by addresses that a directory or a ticket says, and neither of them may decide who is believed.
//
// Decisions.
//   - Nothing is resumed: every handshake proves both certificates under the set of that moment, so a withdrawn authority
//     means what it says. A handshake takes place once a link (and lane), so there is nothing to save.
//   - The files are looked at in handshakes, at most once a second (a stat each), not by a watch: no goroutine, and what
//     replaces files by links (as Kubernetes does) is seen too.
//   - A new set counts only when it is whole: key and certificate belong together, the certificate names this node, is valid now
//     and is one that this set's own authorities sign. Files that are replaced one after the other pass through states that
//     are not; the former set stays until the last of them fits. An expired set at the start is used with a warning: peers refuse
//     it, and the log says why.
//   - A node's certificate serves both directions, so it must allow server and client authentication.
//   - Both protocols of the peer port, frames and lanes, are one protocol to TLS: the ALPN name keeps other services' connections
//     away, the bytes inside tell the two apart as they do without TLS.
//
// Invariants, each with the test that holds it:
//   - nobody passes without a certificate of a trusted authority that is valid now, and of the node meant: TestWhoIsBelieved
//   - a broken set never replaces a whole one, and is logged once: TestBrokenSetIsNotTaken
//   - a new set is used by the next handshake after a look, an open connection goes on: TestRotation
//   - what is wrong with files is said by file: TestWrongFiles; key material is in no error and no log: TestWrongFiles
//   - no file makes loading fail in another way than by an error: FuzzFiles
package peertls
