// Package wire is the framing and the messages of both control protocols: the local one (client and daemon over a
// Unix socket) and the peer one (daemon and daemon over TCP). docs/protocol.md gives the bytes.
//
// Terms. A frame is a 32-byte header, a JSON body and an array (packed little-endian integers or opaque bytes); the
// local protocol may attach file descriptors. A request carries an id that its answer repeats; an event carries 0.
//
// The package does no I/O but through the io.Reader and io.Writer it is given. Lanes, which carry payload, have a
// format of their own (rdma/tcp).
//
// Invariants, each with the test that holds it:
//   - what Append writes, ReadFrame reads back: TestFrameRoundTrip
//   - a stream that ends between frames is io.EOF, inside one io.ErrUnexpectedEOF: TestReadFrameEnds
//   - no input makes a parser panic: FuzzReadFrame, FuzzArrays, FuzzNegotiate, FuzzParseTicket, FuzzInspect
//   - a length that is only claimed costs no memory: TestFalseLengthCostsLittle
//   - the bytes of version 1 never change: TestGoldenFrames, TestGoldenFramesUseEveryField; nor do the golden files, to
//     which a new field or kind adds one (go test ./internal/wire -run TestGoldenFrames -update): TestGoldenFilesNeverChange
//   - an unknown optional field is ignored, an unknown required feature is refused by name: TestNegotiate, and
//     between real daemons test_two_versions, test_nothing_in_common (test/integration); HELLO_OK names
//     the optional features of both sides: TestHelloOKNamesWhatBothKnow
//   - a field out of range is named with the range that is allowed: TestValidateNamesFieldAndRange, TestProbesAreChecked,
//     TestQueriesNameFieldAndRange, TestTraceBodiesNameFieldAndRange, FuzzTraceID, TestPreparedNamesFieldAndRange
//   - no error repeats a ticket or a secret: TestTicketRefusals, TestBodiesKeepTheirSecrets
//   - an error fits into a frame, whatever the other side's text is that it quotes: TestErrorsStaySmall
//   - docs/protocol.md names every kind, field and limit: TestPageNamesEveryKind, TestPageNamesEveryField,
//     TestPageGivesTheLimits, TestPageShowsTheGoldenFrames
package wire
