package pick

import (
	"math"
	"time"
)

// What memory on another NUMA node than the rail's makes a transfer look longer: near enough to use the rail when the near ones
// are busy, and not before.
const (
	PenaltySame    = 1
	PenaltyOther   = 5
	PenaltyUnknown = 10
)

// Penalty for a rail and memory by their NUMA nodes, -1: unknown. Where a node is unknown for all rails alike it changes no choice.
func Penalty(rail, memory int) float64 {
	switch {
	case rail < 0 || memory < 0:
		return PenaltyUnknown
	case rail == memory:
		return PenaltySame
	}
	return PenaltyOther
}

// Rate estimates what a rail carries, in bytes a second, from what it carried. A rail that was slow once would never be chosen, and
// so never be seen to have recovered: without news the estimate goes back to the line rate, half of the way in Forget. The zero
// value is not usable; NewRate makes one. It is not safe for concurrent use.
type Rate struct {
	line, est float64
	at        time.Time
}

// Weight of one observation, and the time in which half of what was learnt is forgotten.
const (
	Weight = 0.25
	Forget = 2 * time.Second
)

// NewRate starts from the line rate. Where that is unknown (0 or less) it is taken as 10 Gbit/s: between rails of one kind the first
// observations correct it.
func NewRate(gbps float64) Rate {
	if !(gbps > 0) || math.IsInf(gbps, 0) {
		gbps = 10
	}
	return Rate{line: gbps * 1e9 / 8, est: gbps * 1e9 / 8}
}

// Observe takes in that bytes took so long.
func (r *Rate) Observe(bytes uint64, took time.Duration, now time.Time) {
	if bytes == 0 || took <= 0 {
		return
	}
	// Completions that wait in a queue come in bunches, which looks faster than any wire.
	seen := min(float64(bytes)/took.Seconds(), r.line)
	r.est = (1-Weight)*r.At(now) + Weight*seen
	if now.After(r.at) {
		r.at = now
	}
}

// At is the estimate now, in bytes a second; always above 0.
func (r *Rate) At(now time.Time) float64 {
	idle := now.Sub(r.at)
	if r.at.IsZero() || idle <= 0 {
		return r.est
	}
	return r.line + (r.est-r.line)*math.Exp2(-idle.Seconds()/Forget.Seconds())
}

// Load is what one rail has to do.
type Load struct {
	Queued  uint64 // bytes posted and not completed
	Rate    *Rate
	Penalty float64 // see the function; less than 1 is 1
	Down    bool    // it is not chosen
}

// Cheapest is the rail on which bytes would be done first: (queued + bytes) / rate x penalty. The first of equals; -1 where all are
// down or there is none.
func Cheapest(now time.Time, rails []Load, bytes uint64) int {
	best, at := math.Inf(1), -1
	for i := range rails {
		r := &rails[i]
		if r.Down {
			continue
		}
		if end := (float64(r.Queued) + float64(bytes)) / r.Rate.At(now) * max(r.Penalty, PenaltySame); end < best || at < 0 {
			best, at = end, i
		}
	}
	return at
}
