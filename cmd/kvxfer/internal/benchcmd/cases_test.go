package benchcmd

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestIDs(t *testing.T) {
	for _, c := range cases {
		a, b := c.ids(local), c.ids(remote)
		assert.Equal(t, a, c.ids(local), c.Name())
		var spread []uint32
		for i := range c.Blocks {
			spread = append(spread, uint32(2*i))
		}
		for _, ids := range [][]uint32{a, b} {
			sorted := slices.Clone(ids)
			slices.Sort(sorted)
			assert.Equal(t, spread, sorted, c.Name())
			assert.Less(t, int(sorted[len(sorted)-1]), c.slots())
		}
		if c.Blocks == 1 {
			continue
		}
		assert.NotEqual(t, a, b, c.Name())
		inOrder := 0 // neighbours of the list that are neighbours in memory on both sides
		for i := range c.Blocks - 1 {
			if a[i+1] == a[i]+stride && b[i+1] == b[i]+stride {
				inOrder++
			}
		}
		assert.Less(t, inOrder, 3, c.Name())
	}
}

func TestListIsWhatTheClientsMove(t *testing.T) {
	c := Case{64, 4 << 10}
	path := filepath.Join(t.TempDir(), "list")
	require.NoError(t, c.writeList(path))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Len(t, b, 24*c.Blocks)
	from, to := c.ids(local), c.ids(remote)
	for i := range from {
		piece := b[24*i:]
		assert.EqualValues(t, int(from[i])*c.BlockBytes, binary.LittleEndian.Uint64(piece))
		assert.EqualValues(t, int(to[i])*c.BlockBytes, binary.LittleEndian.Uint64(piece[8:]))
		assert.EqualValues(t, c.BlockBytes, binary.LittleEndian.Uint64(piece[16:]))
	}
}

func TestNamesOfCases(t *testing.T) {
	for _, c := range cases {
		got, err := chosen(c.Name())
		require.NoError(t, err)
		assert.Equal(t, []Case{c}, got)
		assert.Contains(t, help, c.Name())
	}
	all, err := chosen("")
	require.NoError(t, err)
	assert.Equal(t, cases, all)
	some, err := chosen("64x1MiB, 1x8B,1x8B")
	require.NoError(t, err)
	assert.Equal(t, []Case{{1, 8}, {64, 1 << 20}}, some)
	_, err = chosen("1x8B,2x8B")
	assert.ErrorContains(t, err, `no case "2x8B", allowed 1x8B, 1x4KiB`)
}

func TestContents(t *testing.T) {
	rng := testseed.New(t)
	c := Case{16, 64}
	src, dst := make([]byte, c.slots()*c.BlockBytes), make([]byte, c.slots()*c.BlockBytes)
	from, to := c.ids(local), c.ids(remote)
	move := func() {
		for i := range from {
			copy(dst[int(to[i])*c.BlockBytes:][:c.BlockBytes], src[int(from[i])*c.BlockBytes:])
		}
	}
	seed := rng.Uint64()
	fill(src, from, c.BlockBytes, seed)
	move()
	require.NoError(t, check(dst, to, c.BlockBytes, seed))
	require.Error(t, check(dst, to, c.BlockBytes, seed+1), "what is left of another round")
	at := int(to[rng.IntN(len(to))])*c.BlockBytes + rng.IntN(c.BlockBytes)
	dst[at] ^= 1 << rng.IntN(8)
	require.Error(t, check(dst, to, c.BlockBytes, seed), "a bit at %d", at)
	move()
	require.NoError(t, check(dst, to, c.BlockBytes, seed))
	to[0], to[1] = to[1], to[0]
	require.Error(t, check(dst, to, c.BlockBytes, seed), "two blocks changed places")
}
