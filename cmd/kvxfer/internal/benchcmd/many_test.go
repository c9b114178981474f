package benchcmd

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestManyUsage(t *testing.T) {
	for want, args := range map[string][]string{
		"allowed tcp, shm":         {"--provider", "verbs"},
		"allowed blocks, queued":   {"--part", "blocks,fly"},
		"allowed 1..512":           {"--peers", "1,513"},
		"--in-flight: \"x\"":       {"--in-flight", "x"},
		"--blocks: \"0\"":          {"--blocks", "0"},
		"allowed 1..128 separated": {"--clients", "-1"},
		"allowed 8..4096":          {"--bulk", "7"},
		"allowed 0.1..3600":        {"--seconds", "NaN"},
		"nothing is taken":         {"tcp"},
	} {
		code, stdout, stderr := call(append([]string{"many"}, args...)...)
		assert.Equal(t, 2, code, args)
		assert.Empty(t, stdout)
		assert.Contains(t, stderr, want)
	}
	code, stdout, _ := call("many", "--help")
	assert.Zero(t, code)
	assert.Equal(t, manyHelp, stdout)
}

func TestManyRecords(t *testing.T) {
	took := []time.Duration{3 * time.Millisecond, time.Millisecond, 2 * time.Millisecond, 4 * time.Millisecond}
	m := &many{records: []ManyRecord{
		ManyRecord{Part: "clients", N: 1}.of(took, 8*time.Millisecond, 1e6, 0.25),
		ManyRecord{Part: "clients", N: 8}.of(took, 4*time.Millisecond, 1e6, 0),
		{Part: "queued", N: 5, RSSEach: rounded(2048, 3)},
	}}
	m.best("clients")
	r := m.records[0]
	assert.Equal(t, []any{4, 0.5, 500.0, 2000.0, 4000.0, 0.5, 0.25}, []any{r.Samples, *r.GBps, *r.PerSecond, *r.P50, *r.P99, *r.OfBest, r.OtherCPU})
	assert.Equal(t, 1.0, *m.records[1].OfBest)
	assert.Nil(t, m.records[2].OfBest)
	table := manyTable(m.records)
	for _, s := range []string{"2 ms", "4 ms", "0.50", "2.0 KiB", "25%"} {
		assert.Contains(t, table, s)
	}
	list, err := numbers("1, 5,7", 7)
	require.NoError(t, err)
	assert.Equal(t, []int{1, 5, 7}, list)
}
