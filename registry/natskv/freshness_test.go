package natskv_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/registry"
	rt "github.com/kvxfer/kvxfer/registry/registrytest"
)

// TestAges: while the server answers both ages are those of the latest heartbeats; while it is away both grow.
func TestAges(t *testing.T) {
	s := newSite(t)
	d := s.open(t, s.options())
	require.NoError(t, d.Announce(rt.Context(t), rt.NewNode("a"), registry.TakeOver{}))
	const old = 5 * beat
	young := func() bool { written, heard := d.Ages(); return written < old && heard < old }
	require.Eventually(t, young, rt.Wait, 5*time.Millisecond)
	s.stop(t)
	require.Eventually(t, func() bool { written, heard := d.Ages(); return written > old && heard > old }, rt.Wait, 5*time.Millisecond)
	s.start(t)
	require.Eventually(t, young, rt.Wait, 5*time.Millisecond)
}
