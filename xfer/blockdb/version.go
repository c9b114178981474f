//go:build !kvxfer_next

package blockdb

// recordVersion is the first byte of every value. A database that holds a version outside of oldestRecord to
// recordVersion is not read at all: what a newer daemon meant by a record must not be guessed.
const (
	recordVersion = 2
	oldestRecord  = 1
)
