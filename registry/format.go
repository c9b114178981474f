//go:build !kvxfer_next

package registry

// Format is the version of the entries written by this code.
const Format = 1
