package natskv

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestSilenceIsJudgedLate(t *testing.T) {
	const grace, beat = time.Hour, time.Minute
	long := time.Now().Add(-2 * grace)
	h := health{silent: map[string]time.Time{}}
	assert.False(t, h.condemned("a", grace), "nothing is known of the registry yet")
	h.silent["a"] = long
	assert.True(t, h.condemned("a", grace), "missing for the grace")
	h.writable = long
	assert.True(t, h.condemned("b", grace), "everybody who lives could write for the grace")
	h.wrote(time.Now(), nil, beat)
	assert.Equal(t, long, h.writable)
	h.wrote(time.Now().Add(-2*beat), nil, beat)
	assert.False(t, h.condemned("c", grace), "our own write had to wait: so did others'")
	h.writable = long
	h.wrote(time.Now(), errors.New("no leader"), beat)
	assert.False(t, h.condemned("d", grace), "our own write failed")
	h.wrote(time.Now(), nil, beat)
	assert.False(t, h.condemned("d", grace), "it has only just gone on")
}
