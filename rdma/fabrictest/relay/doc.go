// Package relay stands between the two sides of TCP connections in tests of providers: it passes bytes on, holds them back and
// delivers them later unchanged, or resets the connections as the death of a host does in the end. It is a harness's Cut and Stall.
package relay
