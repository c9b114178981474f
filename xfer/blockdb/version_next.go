//go:build kvxfer_next

package blockdb

// The build of version.NextTag writes records of the next version and reads those of this one.
const (
	recordVersion = 3
	oldestRecord  = 1
)
