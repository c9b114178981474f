package explore

import (
	"bytes"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

// TestKeysMeanTheFuture: states with the same key, whatever led to them, have the same states behind them, and rest or do
// not alike. That is what lets Exhaust visit only one of them.
func TestKeysMeanTheFuture(t *testing.T) {
	rng := testseed.New(t)
	for _, cfg := range []Config{OneLease().Weak().With(2, 1), Presented().With(2, 1), Retry().OnePiece().Weak().With(2, 1), Reading().With(2, 1), TwoReaders().Weak().With(2, 1)} {
		type future struct {
			next []key
			rest bool
		}
		seen, met := map[key]future{}, 0
		for range 150 {
			w := New(&cfg)
			for {
				acts := w.Actions(nil)
				if len(acts) == 0 {
					break
				}
				k, _ := w.key(nil)
				f := future{rest: !progress(acts)}
				for _, a := range acts {
					c := w.clone()
					require.Nil(t, c.Do(a))
					n, _ := c.key(nil)
					f.next = append(f.next, n)
				}
				slices.SortFunc(f.next, func(a, b key) int { return bytes.Compare(a[:], b[:]) })
				f.next = slices.Compact(f.next)
				if again, _ := w.key(nil); again != k {
					require.Fail(t, "letting something happen in a clone changed the original")
				}
				if before, ok := seen[k]; ok {
					met++
					require.Equal(t, before, f)
				}
				seen[k] = f
				if early := rng.IntN(seldom) == 0; slices.ContainsFunc(acts, func(a Action) bool { return a.Kind.early() == early }) {
					acts = slices.DeleteFunc(acts, func(a Action) bool { return a.Kind.early() != early })
				}
				w.Do(acts[rng.IntN(len(acts))])
			}
		}
		t.Logf("%d states, met again %d times", len(seen), met)
		require.Greater(t, met, 100)
	}
}
