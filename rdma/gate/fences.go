//go:build !kvxfer_nofence

package gate

// Fences says whether gates shut.
const Fences = true
