// Package attr holds the names of kvxfer's spans and the keys of their attributes, apart from the exporters, so that
// the engine can name what it measures without linking them.
//
// Invariants, each with the test that holds it:
//   - docs/tracing.md says what the tables here say: TestDocsListKeysAndNames
//   - no key is for a secret: TestNoKeyForSecrets
package attr
