package node

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
)

// Every provider that can be configured is checked by its own code, and nothing is left of the check.
func TestProvidersAreChecked(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, size := range []uint64{1, 4097, 1 << 20} {
		checks := CheckProviders(ctx, &config.Config{Providers: append([]string{"pigeon"}, config.Providers...)}, size)
		require.ErrorIs(t, checks[0].Err, fault.ErrNotSupported)
		for i, c := range checks[1:] {
			assert.Equal(t, config.Providers[i], c.Provider)
			if c.Optional && c.Err != nil { // what a host cannot use it says; where it can, the check is made
				continue
			}
			require.NoError(t, c.Err, c.Provider)
			assert.Positive(t, c.Write)
			assert.Positive(t, c.Read)
		}
	}
}
