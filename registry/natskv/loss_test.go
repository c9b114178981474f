package natskv_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/registry/natskv"
	rt "github.com/kvxfer/kvxfer/registry/registrytest"
)

// The second daemon of a name is refused even where the registry forgot the first and the second comes back to it earlier.
func TestOlderClaimSurvivesALoss(t *testing.T) {
	s := newSite(t)
	o := s.options()
	o.Heartbeat, o.TTL = 10*time.Minute, time.Hour // it comes back when the test says so
	a := s.open(t, o)
	na := announce(t, a, "n")
	js, _ := s.bucket(t)
	require.NoError(t, js.DeleteKeyValue(rt.Context(t), natskv.DefaultBucket))

	b := s.Open(t)
	nb := announce(t, b, "n") // nobody remembers a
	viewer := s.Open(t)
	rt.Sees(t, viewer.View(), nb)
	require.NoError(t, a.SetDraining(rt.Context(t), true))
	rt.Sees(t, viewer.View(), na)
	select {
	case err := <-b.Err():
		require.ErrorIs(t, err, fault.ErrNameTaken)
	case <-time.After(rt.Wait):
		require.FailNow(t, "the second was not refused")
	}
	require.ErrorIs(t, s.Open(t).Announce(rt.Context(t), rt.NewNode("n"), registry.TakeOver{}), fault.ErrNameTaken)
	select {
	case err := <-a.Err():
		assert.NoError(t, err)
	default:
	}
}

// Without a loss it is the other way round: who was silent for a time to live has lost its name.
func TestNameOfASilentNodeIsFree(t *testing.T) {
	t.Parallel() // it mostly waits
	s := newSite(t)
	o := s.options()
	o.TTL = time.Second
	a := s.open(t, o)
	announce(t, a, "n")
	rt.Kill(a)
	b := s.Open(t)
	var err error
	var nb registry.Node
	require.Eventually(t, func() bool { // the entry itself would stay for minutes
		nb = rt.NewNode("n")
		err = b.Announce(rt.Context(t), nb, registry.TakeOver{})
		return err == nil
	}, rt.Wait, 50*time.Millisecond)
	rt.Sees(t, s.Open(t).View(), nb)
}
