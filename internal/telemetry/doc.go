// Package telemetry sets up tracing and metrics for one process and records the spans of clients that have no
// OpenTelemetry of their own.
//
// Terms. A trace is everything that one caller's operation caused, in every process; its id travels as W3C
// traceparent in the local protocol, in the ticket and between the daemons. A span is one named stretch of time
// in one process. A client span was measured by a client (the Python SDK needs only its standard library) and is
// handed to the daemon, which exports it under the ids that the client chose, as the client's process. The trace
// file holds OTLP JSON lines: one ExportTraceServiceRequest a line, as the OTLP file exporter specification has it.
//
// Finished spans are also kept in memory, bounded in number and bytes, for who asks for a trace by its id.
//
// Tracing is off, and costs no goroutine, unless an OTLP endpoint, OTEL_TRACES_EXPORTER=otlp, a trace file or a number of spans
// to be kept asks for it. Nothing process-wide of OpenTelemetry is set (no global provider, error handler or propagator), so that
// a Go program with its own tracing can embed a node. docs/tracing.md tells the user's side: variables, span
// names and attribute keys, which are those of package attr.
//
// Metrics are always measured, and shown on a page for Prometheus; where the environment asks for it they are exported
// over OTLP, too. Their list and the instruments are package instrument's, docs/metrics.md tells the user's side.
// A daemon's span only notes what happens (deferred.go); the SDK gets it when its transfer is over. So the SDK's cost, which is
// some microseconds a span, is not in the way of a transfer. Ids and the sampler's decision are those of the span's start.
//
// Spans are per operation, layer or provider batch, never per block: their number must not grow with the number
// of blocks, and attr.MaxBatchSpans bounds those of one transfer.
//
// Invariants, each with the test that holds it:
//   - without a wish for tracing nothing is started: TestOffStartsNothing
//   - what the environment asks for is what is exported, a wrong value is refused by name: TestSettingsFromEnvironment
//   - a program that embeds a node keeps its environment to itself: TestEnvironmentCanBeLeftUnread
//   - after Shutdown every ended span is exported and no goroutine is left, even when the collector hangs:
//     TestShutdownFlushesTheTraceFile, TestShutdownDoesNotWaitForAHungCollector
//   - every line of the trace file is whole and by one write, ids are hex: TestTraceFileLines, TestLineGolden,
//     TestTraceFileMendsATornLine
//   - a client span is exported under the client's ids, or refused by the field's name: TestClientSpanKeepsItsIDs,
//     TestClientSpanRefusals, FuzzClientSpan
//   - spans that were dropped are counted, each once: TestDroppedSpansAreCounted
//   - the page has the listed names and no label of resource or scope, in the format asked for: TestExporterMakesTheListedNames,
//     TestPageFormats; it is given up in time, and bounded: TestPageInTime, TestPageIsBounded
//   - metrics are exported as the environment asks, and a hung collector holds no end up: TestMetricsSettingsFromEnvironment,
//     TestMetricsExportByOTLP, TestMetricsShutdownDoesNotWaitForAHungCollector
//   - a span that is handed over later is the one that the SDK would have made, sampled as the SDK's samplers say:
//     TestDeferredSpansAreTheSDKs, TestSamplersAreTheSDKs; what waits is bounded: TestLateSpansAreDroppedAndTheQueueIsBounded
//   - what is kept is bounded in spans and bytes, the newest stay, and nobody sees another tenant's: TestKeptIsBounded,
//     TestFindKeepsTenantsApart
//   - a trace is found by its id, a transfer's, or the beginning of one, and is what the trace file would hold: TestFind
//   - a traceparent that is accepted is written back the same: FuzzTraceparent
package telemetry
