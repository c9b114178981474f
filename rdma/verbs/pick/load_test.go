package pick

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestCheapest(t *testing.T) {
	now := time.Unix(1000, 0)
	fast, slow := NewRate(400), NewRate(100)
	for _, x := range []struct {
		what  string
		loads []Load
		bytes uint64
		want  int
	}{
		{"none", nil, 1, -1},
		{"all down", []Load{{Rate: &fast, Down: true}}, 1, -1},
		{"the first of equals", []Load{{Rate: &fast, Penalty: 1}, {Rate: &fast, Penalty: 1}}, 1, 0},
		{"nothing to do", []Load{{Rate: &fast, Down: true}, {Rate: &fast}}, 0, 1},
		{"faster", []Load{{Rate: &slow, Penalty: 1}, {Rate: &fast, Penalty: 1}}, 1 << 20, 1},
		{"idle before busy", []Load{{Queued: 8 << 20, Rate: &fast, Penalty: 1}, {Rate: &slow, Penalty: 1}}, 1 << 20, 1},
		{"near while it is not too busy", []Load{{Queued: 3 << 20, Rate: &fast, Penalty: PenaltySame}, {Rate: &fast, Penalty: PenaltyOther}}, 1 << 20, 0},
		{"far where the near one is", []Load{{Queued: 8 << 20, Rate: &fast, Penalty: PenaltySame}, {Rate: &fast, Penalty: PenaltyOther}}, 1 << 20, 1},
	} {
		assert.Equal(t, x.want, Cheapest(now, x.loads, x.bytes), x.what)
	}
	assert.Equal(t, []float64{1, 5, 10, 10, 10}, []float64{Penalty(1, 1), Penalty(0, 1), Penalty(-1, 1), Penalty(1, -1), Penalty(-1, -1)})
	loads := []Load{{Rate: &fast, Penalty: 1}, {Rate: &slow, Penalty: 5}}
	assert.Zero(t, testing.AllocsPerRun(100, func() { Cheapest(now, loads, 1<<20) }))
}

func TestRate(t *testing.T) {
	now := time.Unix(1000, 0)
	r := NewRate(80) // 10 GB/s
	assert.Equal(t, 10e9, r.At(now))
	for range 50 {
		now = now.Add(time.Millisecond)
		r.Observe(1<<20, time.Second, now) // 1 MiB/s
	}
	assert.Less(t, r.At(now), 1e9)
	was := r.At(now)
	r.Observe(0, time.Second, now)
	r.Observe(1, 0, now)
	assert.Equal(t, was, r.At(now), "they say nothing")
	assert.InDelta(t, (10e9+was)/2, r.At(now.Add(Forget)), 1e6)
	assert.InDelta(t, 10e9, r.At(now.Add(time.Hour)), 1)
	r.Observe(1<<40, time.Microsecond, now)
	assert.LessOrEqual(t, r.At(now), 10e9, "never more than the line")
	unknown := NewRate(math.NaN())
	assert.Equal(t, 1.25e9, unknown.At(now))

	// Whatever is observed, an estimate is one that Cheapest can divide by.
	rng := testseed.New(t)
	for range 1000 {
		now = now.Add(time.Duration(rng.Int64N(int64(time.Minute))) - 10*time.Second)
		r.Observe(rng.Uint64(), time.Duration(rng.Int64()), now)
		at := r.At(now)
		require.True(t, at > 0 && at <= 10e9, "%v", at)
	}
}
