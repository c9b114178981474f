package xfer

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// TestAttemptsAreBounded remembers the last transfers and every one that is not fenced, and no more.
func TestAttemptsAreBounded(t *testing.T) {
	var a attempts
	key := func(i int) attemptKey { return attemptKey{"t", strconv.Itoa(i)} }
	lease := func(i int) (id [16]byte) { copy(id[:], strconv.Itoa(i)); return id }
	require.NoError(t, a.begin(key(-1), lease(-1), 3)) // it stays open
	for i := range 3 * keptAttempts {
		require.NoError(t, a.begin(key(i), lease(i), 1))
		require.NoError(t, a.begin(key(i), lease(i), 1), "another part of the same lease")
		a.end(key(i))
		assert.Equal(t, fault.BlocksBusy, fault.CodeOf(a.check(key(i), lease(i+1), 2)), "one part is not fenced")
		a.end(key(i))
	}
	assert.Len(t, a.at, keptAttempts+1)
	last := 3*keptAttempts - 1
	assert.Equal(t, fault.TicketBound, fault.CodeOf(a.check(key(last), lease(0), 1)))
	assert.NoError(t, a.check(key(last), lease(0), 2))
	assert.NoError(t, a.check(key(0), lease(0), 1), "long ago")
	assert.NoError(t, a.check(attemptKey{"else", key(last).transfer}, lease(0), 1), "another tenant's")
	assert.Equal(t, fault.TicketBound, fault.CodeOf(a.check(key(-1), lease(0), 3)))
	// A transfer that comes back is not forgotten at the place of its former attempt.
	require.NoError(t, a.begin(key(last), lease(0), 2))
	for i := range keptAttempts {
		require.NoError(t, a.begin(key(1e6+i), lease(i), 1))
		a.end(key(1e6 + i))
	}
	assert.Equal(t, fault.BlocksBusy, fault.CodeOf(a.check(key(last), lease(1), 3)))
}
