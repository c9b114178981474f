package gate

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestTryShutDoesNotWait(t *testing.T) {
	if !Fences {
		t.Skip("gates of this build do not shut")
	}
	var g Gate
	g.Init(nil, 0)
	require.Zero(t, g.Enter())
	assert.False(t, g.TryShut(), "somebody is inside")
	g.Leave()
	require.Zero(t, g.Enter(), "nothing has changed")
	g.Leave()
	require.True(t, g.TryShut())
	assert.Equal(t, fault.StaleKey, g.Enter())
	assert.True(t, g.TryShut(), "again")
}
