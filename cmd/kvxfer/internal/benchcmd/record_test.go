package benchcmd

import (
	"encoding/json"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestQuantile(t *testing.T) {
	assert.True(t, math.IsNaN(median(nil)))
	five := []time.Duration{5 * time.Second, time.Second, 3 * time.Second, 2 * time.Second, 4 * time.Second}
	assert.Equal(t, 3.0, median(five))
	assert.Equal(t, 1.0, quantile(five, 0))
	assert.Equal(t, 5.0, quantile(five, 0.99))
	assert.Equal(t, 5.0, quantile(five, 1))
	assert.Equal(t, 2.0, median(five[2:4]), "of an even number the lower one, which was measured")
	rng := testseed.New(t)
	var hundred []time.Duration
	for _, i := range rng.Perm(100) {
		hundred = append(hundred, time.Duration(i+1)*time.Second)
	}
	assert.Equal(t, 50.0, median(hundred))
	assert.Equal(t, 99.0, quantile(hundred, 0.99))
	assert.Equal(t, 1.235e-05, *rounded(1.23456e-5, 4))
	assert.Equal(t, 0.0, *rounded(0, 4))
	assert.Nil(t, rate(1, nil))
	assert.Equal(t, 2.0, *rate(2e9, []time.Duration{time.Second}))
}

func TestReport(t *testing.T) {
	c := Case{1024, 16 << 10}
	full := record("tcp", c, "write", &samples{moved: []time.Duration{4 * time.Millisecond}, submit: []time.Duration{20 * time.Microsecond},
		limit: []time.Duration{3 * time.Millisecond}, line: []time.Duration{8 * time.Millisecond}, limitHow: "4x256", cpu: 10 * time.Millisecond, rss: 40 << 20, others: 0.123})
	bare := record("copy", Case{1, 8}, "go-1", &samples{moved: []time.Duration{40 * time.Nanosecond}})
	b, err := json.MarshalIndent([]Record{full, bare}, "", " ")
	require.NoError(t, err)
	assert.Equal(t, `[
 {
  "bench": "tcp",
  "case": "1024x16KiB",
  "op": "write",
  "way": null,
  "blocks": 1024,
  "block_bytes": 16384,
  "samples": 1,
  "median_s": 0.004,
  "gbps": 4.194,
  "limit_gbps": 5.592,
  "limit_how": "4x256",
  "ratio": 0.75,
  "limit1_gbps": null,
  "ratio1": null,
  "limit2_gbps": null,
  "ratio2": null,
  "contiguous_gbps": 8.389,
  "submit_us_p50": 20,
  "submit_us_p99": 20,
  "cpu_s_per_gb": 0.596,
  "rss_bytes": 41943040,
  "other_cpu": 0.12,
  "busy": 0
 },
 {
  "bench": "copy",
  "case": "1x8B",
  "op": "go-1",
  "way": null,
  "blocks": 1,
  "block_bytes": 8,
  "samples": 1,
  "median_s": 4e-8,
  "gbps": 0.2,
  "limit_gbps": null,
  "limit_how": null,
  "ratio": null,
  "limit1_gbps": null,
  "ratio1": null,
  "limit2_gbps": null,
  "ratio2": null,
  "contiguous_gbps": null,
  "submit_us_p50": null,
  "submit_us_p99": null,
  "cpu_s_per_gb": null,
  "rss_bytes": null,
  "other_cpu": 0,
  "busy": 0
 }
]`, string(b))
	assert.Equal(t, `CASE        OP     MEDIAN  GB/S  LIMIT  RATIO  CONTIGUOUS  SUBMIT P50  P99    CPU S/GB  RSS       OTHERS  LIMIT BY
1024x16KiB  write  4 ms    4.19  5.59   0.75   8.39        20 us       20 us  0.60      40.0 MiB  12%     4x256
1x8B        go-1   40 ns   0.20  -      -      -           -           -      -         -         0%      -
`, table([]Record{full, bare}))
	for v, want := range map[float64]string{0.00123: "0.0012", 0.5: "0.50", 12.34: "12.3", 1234: "1234"} {
		assert.Equal(t, want, number(&v))
	}
	assert.Equal(t, "1.5 s", shown(1.5))
}

// TestHostRecord: of the two limits of host the faster one is the limit, and a case of one block has no second.
func TestHostRecord(t *testing.T) {
	ms := func(n int) []time.Duration { return []time.Duration{time.Duration(n) * time.Millisecond} }
	s := &samples{moved: ms(4), cpu: time.Millisecond, rss: 1 << 20}
	one, two := &rival{way: way{name: "memcpy-1"}, took: ms(2)}, &rival{way: way{name: "stream-2"}, took: ms(1)}
	s.against([]*rival{one, two}, true)
	r := record("host", Case{4, 1 << 20}, "write", s)
	assert.Equal(t, []any{1.049, 2.097, 0.5, 4.194, 0.25, 4.194, 0.25, "stream-2"}, []any{r.GBps, *r.Limit1GBps, *r.Ratio1, *r.Limit2GBps, *r.Ratio2, *r.LimitGBps, *r.Ratio, *r.LimitHow})
	assert.Nil(t, r.SubmitP50, "a run is one call")
	assert.NotNil(t, r.CPUSecondsPGB)
	way := prepared
	r.Way = &way
	assert.Equal(t, `CASE    OP              MEDIAN  GB/S  1 THREAD  RATIO  2 THREADS  RATIO  CONTIGUOUS  SUBMIT P50  P99  CPU S/GB  RSS      OTHERS  LIMIT BY
4x1MiB  write prepared  4 ms    1.05  2.10      0.50   4.19       0.25   -           -           -    0.24      1.0 MiB  0%      stream-2
`, table([]Record{r}))
	s = &samples{moved: ms(4)}
	s.against([]*rival{one}, true)
	r = record("host", Case{1, 8}, "write", s)
	assert.True(t, r.Limit1GBps != nil && r.Limit2GBps == nil && r.Ratio2 == nil)

	assert.Len(t, byThreads(ways("host", "write", Case{1, 8})), 1)
	groups := byThreads(ways("host", "write", Case{2, 8}))
	require.Len(t, groups, 2)
	for i, g := range groups {
		assert.Equal(t, []string{fmt.Sprintf("memcpy-%d", i+1), fmt.Sprintf("stream-%d", i+1)}, []string{g[0].name, g[1].name})
	}
}
