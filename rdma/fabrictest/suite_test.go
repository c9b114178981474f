package fabrictest_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// defectEnv names the defect of the reference provider in a process that TestSeededDefectsAreFound started.
const defectEnv = "FABRICTEST_DEFECT"

func TestReference(t *testing.T) { fabrictest.Run(t, refHarness(os.Getenv(defectEnv))) }

// A suite that cannot fail proves nothing: each defect must make the named test fail, by itself, in a process of its
// own.
func TestSeededDefectsAreFound(t *testing.T) {
	if os.Getenv(defectEnv) != "" {
		t.Fatal("a process with a seeded defect must run TestReference only")
	}
	for _, tt := range []struct{ defect, test string }{
		{"no-fence", "NoLateByte/Fence"},
		{"no-fence-wait", "FenceUnderLoad"},
		{"read-not-fenced", "FenceStopsReads"},
		{"fence-session", "FenceIsPrecise"},
		{"region-close-leaves-windows", "NoLateByte/RemoteRegionClose"},
		{"deadline-timer", "DeadlineStopsPlacement"},
		{"deadline-at-start", "DeadlineInMidOperation"},
		{"no-bounds", "OutOfBounds"},
		{"bounds-late", "OutOfBounds"},
		{"stale-key", "StaleKey"},
		{"any-access", "AccessIsOneWay"},
		{"source-after-completion", "CompletionReleasesSource"},
		{"cancel-waits", "CompletionReleasesSource"},
		{"late-read", "CancelStopsRead"},
		{"early-arrival", "ArrivalAfterBytes"},
		{"early-success", "ArrivalAfterBytes"},
		{"double-completion", "EveryOpCompletes"},
		{"lost-completion", "EveryOpCompletes"},
		{"down-first", "PeerDeath"},
		{"no-down", "PeerDeath"},
		{"post-blocks", "BackPressure"},
		{"no-byte-window", "BackPressure"},
		{"lost-wakeup", "Sizes"},
		{"leak-goroutine", "Leaks"},
		{"leak-fd", "Leaks"},
	} {
		t.Run(tt.defect, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(os.Args[0], "-test.run=^TestReference$/^"+anchored(tt.test)+"$", "-test.timeout=60s", "-test.failfast")
			c.Env = append(os.Environ(), defectEnv+"="+tt.defect)
			out, err := c.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the suite did not find it:\n%s", out)
			assert.True(t, bytes.Contains(out, []byte("--- FAIL: TestReference/"+tt.test)), "another failure than that of %s:\n%s", tt.test, out)
		})
	}
}

// anchored anchors each level of a subtest's name.
func anchored(name string) string {
	return string(bytes.ReplaceAll([]byte(name), []byte("/"), []byte("$/^")))
}
