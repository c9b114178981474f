//go:build kvxfer_next

package wire

import (
	"os"
	"strconv"
	"strings"
)

// What the build of version.NextTag speaks. So that one build can play versions that are further away too, a test sets
// KVXFER_NEXT_MIN_VERSION (1 or 2) and KVXFER_NEXT_REQUIRED (features, comma-separated).
var (
	MinVersion = minVersion()
	required   = requiredFeatures()
	Features   = append([]string{FeaturePrepared, "next_feature"}, required...)
)

const MaxVersion = 2

func minVersion() int {
	if n, err := strconv.Atoi(os.Getenv("KVXFER_NEXT_MIN_VERSION")); err == nil {
		return n
	}
	return 1
}

func requiredFeatures() []string {
	if s := os.Getenv("KVXFER_NEXT_REQUIRED"); s != "" {
		return strings.Split(s, ",")
	}
	return nil
}
