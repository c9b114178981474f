package peerlink

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/xfer"
)

// TestDialSaysHowFarItIs: which address, which step, and why the address before did not work.
func TestDialSaysHowFarItIs(t *testing.T) {
	closed := listen(t, "127.0.0.1:0")
	require.NoError(t, closed.Close())
	silent := listen(t, "127.0.0.1:0")
	g := newGate()
	a := newNode(t, "a", epochA, func(o *Options) {
		o.Dial = g.dial
		o.Resolve = func(string) (string, string, bool) { return closed.Addr().String(), epochB, true }
	})
	ref := xfer.PeerRef{Node: "b", Epoch: epochB, Addr: silent.Addr().String(), Tenant: "blue"}
	_, flying := a.Dialing(ref)
	assert.False(t, flying)
	got := dialAsync(t.Context(), a, ref)
	var state xfer.DialState
	step := func(want, addr string) {
		eventually(t, want, func() bool { s, ok := a.Dialing(ref); state = s; return ok && s.Step == want && s.Addr == addr })
	}
	step("connect", closed.Addr().String())
	assert.Empty(t, state.Before)
	close(g.release)
	step("hello", silent.Addr().String()) // it accepts, and says nothing
	assert.Contains(t, state.Before, "PeerUnreachable")
	assert.GreaterOrEqual(t, state.For.Nanoseconds(), int64(0))
	require.NoError(t, silent.Close())
	require.Error(t, (<-got).err)
	_, flying = a.Dialing(ref)
	assert.False(t, flying)
}
