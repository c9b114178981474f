package hostmem

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestAllocate(t *testing.T) {
	m, err := Allocate("probe", 5000)
	require.NoError(t, err)
	b := unsafe.Slice((*byte)(m.Memory().Base), 5000)
	assert.Zero(t, b[4999])
	b[4999] = 7
	require.NoError(t, m.Close())
	_, err = Allocate("probe", 0)
	assert.ErrorIs(t, err, fault.ErrResourceExhausted)
}
