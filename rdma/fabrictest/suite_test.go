package fabrictest_test

import (
	"os"
	"os/exec"
	"strings"
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
	for _, tt := range []struct{ defect, test, says string }{
		{"no-fence", "NoLateByte/Fence", "WRITE after Fence: region"},
		{"no-fence-wait", "FenceUnderLoad", "after Fence had returned nil"},
		{"read-not-fenced", "FenceStopsReads", "were read by the peer"},
		{"fence-session", "FenceIsPrecise", "ended with status StaleKey; allowed: [success]"},
		{"region-close-leaves-windows", "NoLateByte/RemoteRegionClose", "WRITE after RemoteRegionClose: region"},
		{"deadline-timer", "DeadlineStopsPlacement", "ended with success, want LeaseExpired"},
		{"deadline-at-start", "DeadlineInMidOperation", "deadline passed in the middle: region"},
		{"no-bounds", "OutOfBounds", "ended with success, want OutOfBounds"},
		{"bounds-late", "OutOfBounds", "among good ranges: region"},
		{"stale-key", "StaleKey", "a fenced key: ended with success, want StaleKey"},
		{"any-access", "AccessIsOneWay", "ended with success, want PermissionDenied"},
		{"source-after-completion", "CompletionReleasesSource", "in the source after the completion arrived"},
		{"cancel-waits", "CompletionReleasesSource", "for a completion"},
		{"late-read", "CancelStopsRead", "after the completion of a cancelled READ: region"},
		{"early-arrival", "ArrivalAfterBytes", "an arrival was polled before its bytes"},
		{"early-success", "ArrivalAfterBytes", "completed with success before its bytes"},
		{"double-completion", "EveryOpCompletes", "completed 2 times"},
		{"lost-completion", "EveryOpCompletes", "for the completion of every operation taken"},
		{"down-first", "PeerDeath", "after EventDown"},
		{"no-down", "PeerDeath", "for EventDown of a session that was cut"},
		{"post-blocks", "BackPressure", "Post into a full window has not returned"},
		{"no-byte-window", "BackPressure", "its window of"},
		{"wrote-denied", "DeadlineInMidOperation", "all say that nothing was written"},
		{"lost-wakeup", "Sizes", "for a completion"},
		{"two-takes", "Delivered/ConcurrentPosters", "were delivered by two goroutines at a time"},
		{"take-under-lock", "Delivered/CallsFromTake", "a chain of operations posted from take has not returned"},
		{"leak-goroutine", "Leaks", "goroutines are left"},
		{"leak-fd", "Leaks", "for the file descriptors of closed providers"},
	} {
		t.Run(tt.defect, func(t *testing.T) {
			t.Parallel()
			c := exec.Command(os.Args[0], "-test.run=^TestReference$/^"+anchored(tt.test)+"$", "-test.timeout=60s", "-test.failfast")
			c.Env = append(os.Environ(), defectEnv+"="+tt.defect)
			out, err := c.CombinedOutput()
			var exit *exec.ExitError
			require.ErrorAs(t, err, &exit, "the suite did not find it:\n%s", out)
			assert.Contains(t, string(out), "--- FAIL: TestReference/"+tt.test, "another failure than that of %s:\n%s", tt.test, out)
			assert.Contains(t, string(out), tt.says, "found for another reason")
		})
	}
}

// anchored anchors each level of a subtest's name.
func anchored(name string) string {
	return strings.ReplaceAll(name, "/", "$/^")
}
