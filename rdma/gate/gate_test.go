package gate_test

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
)

type clock struct{ now atomic.Int64 }

func (c *clock) Now() rdma.Instant { return rdma.Instant(c.now.Load()) }

func TestShutIsForEver(t *testing.T) {
	var g gate.Gate
	g.Init(new(clock), 0)
	require.Zero(t, g.Enter())
	g.Leave()
	g.Shut()
	g.Shut()
	assert.Equal(t, fault.StaleKey, g.Enter())
	assert.False(t, g.Extend(0), "a shut gate is not opened by a later deadline")
	assert.Equal(t, fault.StaleKey, g.Enter())
}

func TestShutWaitsForThoseInside(t *testing.T) {
	var inside atomic.Bool
	for range 1000 {
		var g gate.Gate
		g.Init(new(clock), 0)
		require.Zero(t, g.Enter())
		inside.Store(true)
		done := make(chan bool)
		go func() {
			g.Shut()
			done <- inside.Load()
		}()
		inside.Store(false)
		g.Leave()
		require.False(t, <-done, "Shut returned while somebody was inside")
	}
}

func TestDeadlineIsComparedAtEveryEntry(t *testing.T) {
	var g gate.Gate
	c := new(clock)
	c.now.Store(10)
	g.Init(c, 20)
	require.Zero(t, g.Enter())
	g.Leave()
	c.now.Store(20)
	assert.Equal(t, fault.LeaseExpired, g.Enter())
	assert.True(t, g.Extend(30))
	require.Zero(t, g.Enter())
	g.Leave()
}
