// Package traceview turns trace files into a timeline that a person can read: an SVG picture or text.
//
// Terms. A Set holds the spans of all files read. A Process is what spans of one resource share: service, node and
// pid. A Timeline is one trace: its Groups, one a process, in the order in which the trace reached them; a group's
// Rows, one a span, parents above their children and siblings by start. Depth counts parents within the group.
//
// The package is pure: it reads only the readers that it is given, has no clock, and the same spans give the same
// bytes. It does not import the tracing SDK, so that a viewer does not need one.
//
// Invariants, each with the test that holds it:
//   - no input makes Read fail other than by a reader's error or a documented limit: FuzzRead, TestReadToleratesDamage
//   - every span of a trace is in exactly one row, parents above children within a group, whatever the parent ids
//     say: TestTimelineRandom
//   - the SVG is well-formed XML, whatever names and values hold: TestSVGIsWellFormed, FuzzRead
//   - pictures and text stay as reviewed: TestGolden
//   - the attribute keys read here are those that are written: TestKeysAreTelemetrys
package traceview
