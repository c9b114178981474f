//go:build !kvxfer_next

package version

// Next says whether this build plays the next version, for the tests of upgrades: see NextTag.
const Next = false

// NextTag is the build tag that makes a daemon which plays the next version: it speaks protocol 1 to 2, knows a feature
// that this version does not, and puts a field that nobody knows into every JSON object of its frames, tickets and
// registry entries. It exists so that tests see two versions of the daemon at work together, and must not be used.
const NextTag = "kvxfer_next"

// WithUnknownFields is what a build of NextTag puts into JSON; here it changes nothing.
func WithUnknownFields(raw []byte) []byte { return raw }
