// Package attr holds the names of kvxfer's spans and the keys of their attributes, apart from the exporters, so that
// the engine can name what it measures without linking them.
//
// Invariant: docs/tracing.md says what the tables here say: TestDocsListKeysAndNames.
package attr
