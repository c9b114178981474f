// Package testseed gives random tests their seed: printed, and set by KVXFER_SEED to repeat a failure.
package testseed

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
)

// Seed returns the test's seed and prints it.
func Seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(time.Now().UnixNano())
	if v, err := strconv.ParseUint(os.Getenv("KVXFER_SEED"), 10, 64); err == nil {
		s = v
	}
	t.Logf("seed %d (KVXFER_SEED=%d repeats it)", s, s)
	return s
}

// New returns a generator that starts from Seed.
func New(t testing.TB) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(Seed(t), 0x6b76786665720000))
}
