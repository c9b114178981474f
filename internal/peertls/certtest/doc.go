// Package certtest makes authorities and certificates for tests: an Authority issues certificates (Leaf) and writes them as
// the files that a daemon reads. Nothing but tests uses it; that a daemon takes what it makes is held by the tests of peertls,
// the package above.
package certtest
