package ring

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSpinFollowsWhatItGains(t *testing.T) {
	var s Spin
	now := time.Unix(1000, 0)
	look := func(behind time.Duration) time.Duration {
		now = now.Add(behind)
		s.adapt(now)
		return s.look
	}
	fails := func() { s.left = now }
	assert.Equal(t, MaxSpin, look(0), "at first")
	for range 10 {
		fails()
		look(time.Millisecond)
	}
	assert.Equal(t, minSpin, s.look, "what comes late is not waited for")
	fails()
	assert.Equal(t, MaxSpin, look(soon-1), "what comes soon is")
	assert.Equal(t, MaxSpin, look(time.Hour), "a look that found shortens nothing")
	s.avoid = now.Add(avoidFor)
	fails()
	assert.Equal(t, minSpin, look(1), "somebody else wants the processor")
	now = now.Add(avoidFor)
	fails()
	assert.Equal(t, MaxSpin, look(1), "and wants it no more")
}

func TestSpinEnds(t *testing.T) {
	for _, locked := range []bool{false, true} {
		s := Spin{Locked: locked}
		n := 0
		assert.False(t, s.Until(func() bool { n++; return false }, nil))
		assert.Positive(t, n)
		assert.True(t, s.Until(func() bool { return true }, nil))
		n = 0
		assert.True(t, s.Until(func() bool { n++; return n == looks+1 }, nil))
	}
}
