// Package health is the daemon's HTTP side: is it alive, is it ready, what does it say of itself. It only reads.
//
//	GET /healthz  200 "ok" while the process works, else 503 with the reason
//	GET /readyz   200 "ok" when the node takes work, else 503 with the reason
//	GET /status   200, a JSON object
//	GET /metrics  200, the metrics for Prometheus; 503 when they could not be gathered in time
//
// and, only where the node's settings ask for it,
//
//	GET /debug/pprof/...  profiles of this process, as net/http/pprof has them
//
// Liveness is for who restarts a daemon, readiness for who sends it work: a daemon that drains is alive and not
// ready. Nothing else is served. There is no authentication: what is shown names nodes, addresses and counts, never
// tickets, secrets or blocks, and the default address is loop-back.
//
// Invariants, each with the test that holds it:
//   - the paths answer as above, other paths 404, other methods 405: TestAnswers, TestMetricsPage, TestNothingElseIsServed
//   - profiles are served only where they are asked for, and for a bounded time: TestProfiles
//   - metrics that cannot be gathered in time or at all cost a scraper its answer and nobody else: TestMetricsThatHang
//   - a client that sends slowly is cut off, and clients cannot pile up: TestSlowClientIsCutOff, TestConnectionsAreBounded
//   - at the end a request in progress is answered and no goroutine is left: TestShutdown, TestMain
package health
