package explore_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/xfer/explore"
)

// TestEachDefectIsFound explores a world whose drivers break one rule, and expects what follows from that. The same
// worlds without a defect have no violation: TestExhaustive.
func TestEachDefectIsFound(t *testing.T) {
	one, weak := explore.OneLease(), explore.OneLease().Weak()
	for _, x := range []struct {
		defect explore.Defect
		cfg    explore.Config
		rule   string
	}{
		{explore.NoFence, one.With(0, 0), "late write"},
		{explore.NoFence, explore.Reading().With(0, 0), "late read"},
		{explore.GrantBeforeJournal, one.Only(explore.CrashOwner), "torn block"},
		{explore.RepeatCounts, one.Only(explore.Resend), "torn layer"},
		{explore.EpochUnchecked, explore.Retry().OnePiece().Only(explore.CrashOwner), "torn layer"},
		{explore.ReleaseUnchecked, explore.Reading().Weak().Only(explore.Revoke), "read"},
		{explore.BoundTwice, explore.Presented().With(0, 0), "bound twice"},
		{explore.WallClock, one.Only(explore.StepWall), "clock"},
		{explore.WallClock, explore.Reading().Only(explore.StepWall), "clock"},
		{explore.FinIsEnough, weak.With(0, 0), "torn layer"},
		{explore.CommitWithoutFin, one.With(0, 0), "no FIN"},
		{explore.FreedBeforeFence, one.With(0, 0), "late write"},
		{explore.CommitUnfenced, one.Only(explore.Resend, explore.Reuse), "late write"},
		{explore.ReleasedTooEarly, one.With(0, 0), "torn layer"},
		{explore.ReleasedTooEarly, explore.Reading().With(0, 0), "read"},
		{explore.TimerOnly, one.With(0, 0), "clock"},
		{explore.DoneWithoutAnswer, one.With(0, 0), "false DONE"},
		{explore.RenewRevives, one.Only(explore.Renew), "clock"},
		{explore.VouchAlone, one.Only(explore.CrashOwner), "torn block"},
		{explore.LostLinkFrees, one.Only(explore.Cut), "late write"},
		{explore.StuckFenceFrees, one.Only(explore.FenceFails), "late write"},
		{explore.TimerForgotten, one.With(0, 0), "liveness"},
	} {
		t.Run(x.defect.String(), func(t *testing.T) {
			if x.defect == explore.EpochUnchecked && race {
				return // two leases are many states; TestWalksFindDefects finds it with the race detector too
			}
			cfg := x.cfg
			cfg.Defect = x.defect
			r := explore.Exhaust(&cfg, 0)
			require.NotNil(t, r.Bad, "not found in %d states", r.States)
			trace := explore.Shrink(&cfg, r.Trace, r.Bad.Rule)
			_, bad := explore.Replay(&cfg, trace)
			require.NotNil(t, bad, "the shrunk trace shows it too")
			assert.Equal(t, x.rule, bad.Rule)
			t.Logf("found after %d states; %d events, %d after shrinking\n%s", r.States, len(r.Trace), len(trace), explore.Format(&cfg, trace))
		})
	}
}

// TestWalksFindDefects: random walks in larger worlds find every defect as well.
func TestWalksFindDefects(t *testing.T) {
	rng := testseed.New(t)
	for _, d := range explore.Defects() {
		t.Run(d.String(), func(t *testing.T) {
			steps, bad := 0, (*explore.Violation)(nil)
			for bad == nil && steps < 20_000_000 {
				cfg := world(rng)
				cfg.Defect = d
				r := explore.Walk(&cfg, rng.IntN, walkLength)
				steps, bad = steps+len(r.Trace), r.Bad
			}
			require.NotNil(t, bad, "not found in %d steps", steps)
			t.Logf("found after %d steps: %s", steps, bad)
		})
	}
}

const walkLength = 400

func world(rng *rand.Rand) explore.Config {
	return explore.RandomWorld([...]explore.Mode{explore.Write, explore.Write, explore.Read}[rng.IntN(3)], rng.IntN)
}
