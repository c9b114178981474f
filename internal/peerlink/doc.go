// Package peerlink keeps the control connections between daemons: who may connect, what is agreed on when it does,
// whether the peer still lives, and the payload session that belongs to each connection.
//
// Terms. A link is one control connection with its payload session; the side that dialed is the source of all
// transfers on it. The handler is who uses the links (the engine). A lane is a connection of a provider that carries
// payload; it arrives on the same port and is handed on unread. A flight is a dial in progress that several callers
// wait for. A visitor is an accepted connection that has not said yet what it is.
//
// A link begins with HELLO and its answer. The accepting side makes its half of the session first, tells the
// handler, and only then answers, so that no frame finds the handler unprepared. The dialing side opens the payload
// session with what the answer gave it, then tells its handler. Which lanes a dialer has opened is the provider's
// affair: a dialer whose session does not come up closes the control connection, and a session always ends with it.
//
// A dialer that finds that the provider which was chosen does not reach the peer (shm where the two have no file system in
// common) dials once more with an offer of the others. It remembers that for the peer's epoch and RetryProvider, logs it
// once, and the link's reason says it.
//
// A link of the node to itself has both ends in this process and no connection, where the best provider that is allowed reaches itself
// there (rdma.Insider): no hello, no heartbeat, frames as they are from one end's inbox, and a goroutine an end. Its two ends count
// as two links. Whoever excludes that provider gets a link over TCP as to any peer.
//
// Life signs. Both sides send PING once in every HeartbeatEvery, unless something else waits to be sent. What counts is
// bytes that arrive, not whole frames: a block list of 64 MiB may take longer on a busy network than a peer may be silent. Silence
// is counted in ticks of this process, not in time: a process that was itself stopped or starved has fewer of them and
// does not blame its peers. Ticks in which the handler holds up the reader do not count either. TCP's keepalive
// says only that a kernel lives and is off.
//
// TLS. With Options.TLS a port wants it of every control connection, and the bytes that a connection opens with say which it is:
// the record of a ClientHello, or a frame. Lanes come in both ways; their provider says which it takes. Whoever speaks the other
// way is told why in the way it can read: frames go back in clear to both, since a dialer over TLS sees from their first bytes what
// it has reached. The handshake is part of the hello, under its time and its bound. A HELLO's node must be one that the dialer's
// certificate names, and what a dialer reaches one that it dialed. A write over TLS that timed out cannot be continued, so a peer
// that takes less than 4 KiB in the time it may be silent is lost, where in clear one byte is enough.
//
// Identifiers of PINGs have their top bit set (PingBit): OK and ERROR answer both PINGs and the handler's requests.
//
// Invariants, each with the test that holds it:
//   - LinkUp comes before a link's first frame, frames in order from one goroutine, LinkDown once and last:
//     TestFramesInOrder, TestLinkDownOnce, TestManyLinksComeAndGo
//   - whoever sends a frame writes it where nobody else does and the connection takes it at once; each sender's frames keep their
//     order: TestFramesOfManySenders
//   - the dialer reaches the incarnation that it wants or gets StaleEpoch: TestStaleEpoch, TestAnotherNodeAnswers
//   - a dial under way says which address and step it is at: TestDialSaysHowFarItIs
//   - a node that ends in order lets the peer read what was sent before its session goes: TestLastWordsBeforeTheSessionGoes
//   - an incarnation that speaks no common version is noted once, its dialers' errors are typed: TestStrangersAreNotedOnce,
//     TestDialerSaysWhatItCannotDo
//   - one live link a peer, epoch and tenant; who stops waiting for it disturbs nobody: TestSingleFlight,
//     TestOneCallerGivesUp, TestReconnect
//   - a dial that names a provider gets a link over it or an error that says why not, and shares a link that uses it already:
//     TestOnlyTheNamedProvider
//   - a provider that does not reach the peer is replaced by the next, with the reason, and is not tried again at once:
//     TestProviderThatDoesNotReach, TestShunnedByEpoch, TestWhatEndsADial
//   - a silent, stopped or unreading peer costs its own link within the heartbeat's bound, and Close is not held up:
//     TestSilentPeerIsLost, TestPeerThatDoesNotRead, TestCloseDoesNotWaitForAFullSocket, TestQueueOverflow
//   - whoever connects costs little and can be put out: TestGarbage, TestSilentVisitorsAreBounded, TestSlowHello,
//     FuzzVisitor; a link's dialer can make this node hold no more than a notification: TestDialersArrayIsBounded
//   - where TLS is required nobody gets a link in clear, and nobody as another node than its certificate's:
//     TestClearAndTLSDoNotMeet, TestWrongCertificates, TestDialerHearsThatItIsNotBelieved, FuzzVisitorOfATLSPort; its handshake
//     and its goodbyes hold nobody up: TestSlowHandshake, TestTLSPeerThatDoesNotRead, TestCloseEndsHandshakes
//   - a link inside the process keeps the same rules: TestInside, TestInsideFramesInOrder, TestInsideLinkDownOnce,
//     TestInsideQueueOverflow, TestInsideDrain
//   - the session is closed before LinkDown: TestSessionEndsBeforeLinkDown
//   - nothing is left after Close: TestMain (goroutines), TestNoDescriptorIsLeft
package peerlink
