//go:build !kvxfer_next

package wire

// Protocol versions that this build speaks, on both protocols.
const (
	MinVersion = 1
	MaxVersion = 1
)

// Features known to this build, which it would use.
var Features = []string{FeaturePrepared}

// required are the features that this build cannot do without.
var required []string
