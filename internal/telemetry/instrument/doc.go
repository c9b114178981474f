// Package instrument holds the one list of kvxfer's metrics and makes the OpenTelemetry instruments from it, apart from
// the exporters, so that the engine can count what it does without linking them.
//
// Terms. A metric is a row of List: name, kind, unit, attributes with their values, meaning. Its Prometheus name follows
// from it by the rules of OpenTelemetry. An attribute is a label there.
//
// No attribute names a node, peer, cache, model, tenant or client: how many series a daemon has depends on its version
// and its providers, and on the host's RDMA ports, alone, never on its load.
//
// Invariants, each with the test that holds it:
//   - docs/metrics.md says what List says: TestDocsList
//   - every name has a row and every row a name, a unit and a meaning: TestListIsWhole
//   - the Prometheus names are those that the exporter makes: held by a test of package telemetry, which has the exporter
//   - a daemon shows these metrics, with these attributes and values, and no others: test/integration test_metrics.py
package instrument
