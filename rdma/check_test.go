package rdma_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
)

func TestCompactAgreesWithANaiveSum(t *testing.T) {
	rng := testseed.New(t)
	local := rdma.Memory{Len: 1000, Name: "r"}
	for range 500 {
		var o rdma.Op
		var want []rdma.Range
		var sum uint64
		for range rng.IntN(6) {
			x := rdma.Range{Local: rng.Uint64N(900), Remote: rng.Uint64(), Len: rng.Uint64N(100)}
			o.Ranges = append(o.Ranges, x)
			if sum += x.Len; x.Len > 0 {
				want = append(want, x)
			}
		}
		got, total, err := o.Compact(nil, &local, 1<<20)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.Equal(t, sum, total)
	}
}

func TestChecksNameFieldAndRange(t *testing.T) {
	local := rdma.Memory{Len: 100, Name: "r"}
	post := func(most uint64, ranges ...rdma.Range) error {
		o := rdma.Op{Kind: rdma.OpWrite, Ranges: ranges}
		_, _, err := o.Compact(nil, &local, most)
		return err
	}
	full := rdma.Range{Len: 100}
	require.NoError(t, post(100, full, rdma.Range{Local: ^uint64(0)}), "an empty range moves nothing, wherever it lies")
	for _, c := range []struct {
		err   error
		is    error
		field string
	}{
		{(&rdma.Op{Kind: 3}).CheckKind(), fault.ErrInvalidArgument, "Kind"},
		{(&rdma.Op{Ranges: make([]rdma.Range, 2)}).CheckCount(1), fault.ErrInvalidArgument, "Ranges"},
		{post(100, rdma.Range{Local: 1, Len: 100}), fault.ErrOutOfBounds, "Ranges"},
		{post(100, rdma.Range{Local: ^uint64(0), Len: 2}), fault.ErrOutOfBounds, "Ranges"},
		{post(100, full, full), fault.ErrInvalidArgument, "Ranges"},
		{(&rdma.Window{Access: rdma.AccessRead | rdma.AccessWrite, Bounds: rdma.Spans{}}).Check(), fault.ErrInvalidArgument, "Access"},
		{(&rdma.Window{Access: rdma.AccessRead}).Check(), fault.ErrInvalidArgument, "Bounds"},
	} {
		require.ErrorIs(t, c.err, c.is)
		assert.Equal(t, c.field, fault.From("", c.err).Field)
	}
	assert.Equal(t, fault.ProtocolViolation, rdma.DownStatus(fault.New(fault.ProtocolViolation, "lane", "x")))
	assert.Equal(t, fault.PeerLost, rdma.DownStatus(nil))
}
