package explore_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/xfer/explore"
)

// TestRandom walks through larger worlds: 300,000 events, or KVXFER_EXPLORE_STEPS.
func TestRandom(t *testing.T) {
	most := 300_000
	if s := os.Getenv("KVXFER_EXPLORE_STEPS"); s != "" {
		n, err := strconv.Atoi(s)
		require.NoError(t, err, "KVXFER_EXPLORE_STEPS is a number of events")
		most = n
	}
	rng := testseed.New(t)
	steps, walks, marks := 0, 0, explore.Marks(0)
	for steps < most {
		cfg := world(rng)
		r := explore.Walk(&cfg, rng.IntN, walkLength)
		if r.Bad != nil {
			require.NoError(t, r.Bad, "walk %d in %+v\n%s", walks, cfg, explore.Format(&cfg, explore.Shrink(&cfg, r.Trace, r.Bad.Rule)))
		}
		walks, steps, marks = walks+1, steps+len(r.Trace), marks|r.Marks
	}
	t.Logf("%d events in %d walks", steps, walks)
	if most >= 100_000 {
		assert.Equal(t, explore.AllMarks, marks, "something never happened")
	}
}

// TestShrinkKeepsTheViolation: what is left of a trace still breaks the same rule, and nothing can be left out.
func TestShrinkKeepsTheViolation(t *testing.T) {
	cfg := explore.OneLease().With(0, 0)
	cfg.Defect = explore.NoFence
	r := explore.Exhaust(&cfg, 0)
	require.NotNil(t, r.Bad)
	trace := explore.Shrink(&cfg, r.Trace, r.Bad.Rule)
	for i := range trace {
		less := append(append([]explore.Action(nil), trace[:i]...), trace[i+1:]...)
		if _, bad := explore.Replay(&cfg, less); bad != nil {
			assert.NotEqual(t, r.Bad.Rule, bad.Rule, "event %d is not needed", i)
		}
	}
	assert.Contains(t, explore.Format(&cfg, trace), r.Bad.Rule)
}
