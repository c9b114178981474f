package benchcmd

import (
	"math"
	"slices"
	"time"
)

// quantile is the q-th of the samples, 0 to 1, by the nearest rank: a value that was measured. It is NaN without samples.
func quantile(samples []time.Duration, q float64) float64 {
	if len(samples) == 0 {
		return math.NaN()
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	rank := int(math.Ceil(q*float64(len(s)))) - 1
	return s[min(max(rank, 0), len(s)-1)].Seconds()
}

func median(samples []time.Duration) float64 { return quantile(samples, 0.5) }

// rate is GB/s (1e9 bytes a second) of bytes moved in each of the samples' median, nil without samples.
func rate(bytes int, samples []time.Duration) *float64 {
	m := median(samples)
	if math.IsNaN(m) || m <= 0 {
		return nil
	}
	return rounded(float64(bytes)/m/1e9, 4)
}

// rounded keeps digits significant digits: what is measured has no more, and a report stays readable.
func rounded(v float64, digits int) *float64 {
	if v != 0 && !math.IsInf(v, 0) && !math.IsNaN(v) {
		p := math.Pow(10, float64(digits-1)-math.Floor(math.Log10(math.Abs(v))))
		v = math.Round(v*p) / p
	}
	return &v
}
