package xfer

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// TestPastTransfersAreBounded: the last ones, the latest first, and a cursor that old ones have overtaken.
func TestPastTransfersAreBounded(t *testing.T) {
	var p pastTransfers
	list := func(n uint64, most int) (ids []string, numbers []uint64) {
		p.before(n, 1000, func(number uint64, row wire.TransferRow) bool {
			ids, numbers = append(ids, row.TransferID), append(numbers, number)
			return len(ids) < most
		})
		return ids, numbers
	}
	none, _ := list(1<<62, 10)
	require.Empty(t, none)
	for i := range 2*keptTransfers + 10 {
		p.add(&wire.TransferRow{TransferID: strconv.Itoa(i)}, rdma.Instant(i))
	}
	ids, numbers := list(1<<62, 1<<20)
	require.Len(t, ids, keptTransfers)
	assert.Equal(t, strconv.Itoa(2*keptTransfers+9), ids[0])
	assert.Equal(t, strconv.Itoa(keptTransfers+10), ids[keptTransfers-1])
	next, _ := list(numbers[1], 1)
	assert.Equal(t, ids[2:3], next)
	gone, _ := list(5, 10)
	assert.Empty(t, gone)
}

// TestLookDoesNotHang: what somebody works on under its lock is said to be so, within a bound over a whole answer.
func TestLookDoesNotHang(t *testing.T) {
	k := &look{left: 5 * time.Millisecond}
	var mu sync.Mutex
	mu.Lock()
	for range 1000 { // a thousand of them cost no more than one
		require.False(t, k.lock(&mu))
	}
	assert.LessOrEqual(t, k.left, time.Duration(0))
	mu.Unlock()
	require.True(t, k.lock(&mu))
}
