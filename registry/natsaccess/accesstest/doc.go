// Package accesstest makes what a NATS server with accounts and its users have, for tests: an operator, one account with
// JetStream, credentials files and the server's configuration. Nothing but tests uses it; that a real server takes what it makes
// is held by the tests of access in registry/natskv and by test/integration test_registry_access.py.
package accesstest
