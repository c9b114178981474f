package natskv

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReconnectionsAreSpread(t *testing.T) {
	assert.Zero(t, spread(0))
	assert.Zero(t, spread(1))
	assert.Equal(t, 200*spreadPerNode, spread(201))
	assert.Equal(t, maxSpread, spread(1<<20))
}

func TestPulse(t *testing.T) {
	var p pulse
	now := time.Now()
	assert.False(t, p.stopped(time.Minute), "just begun")
	p.tick(now.Add(-2 * time.Hour))
	assert.True(t, p.stopped(time.Hour), "no tick for long")
	p.tick(now)
	assert.True(t, p.stopped(time.Hour), "it went on, and nobody has heard it since")
	p.heard()
	assert.False(t, p.stopped(time.Hour))
}
