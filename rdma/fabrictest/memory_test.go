package fabrictest_test

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

func TestPatternsAndGuards(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 4095, 10000} {
		for _, misalign := range []int{0, 1, 4095} {
			m := fabrictest.Alloc(t, n, misalign)
			b := m.Bytes()
			assert.Len(t, b, n)
			for _, c := range []fabrictest.Class{fabrictest.ClassTarget, fabrictest.ClassSource, fabrictest.ClassLater} {
				fabrictest.Fill(b, c, 7)
				assert.Equal(t, n, fabrictest.CountClass(b, c))
			}
			assert.NoError(t, m.GuardsIntact(), "filling %d bytes at +%d reached beside them", n, misalign)
			h := m.Host("r")
			assert.Equal(t, uint64(n), h.Len)
			assert.Equal(t, uintptr(misalign), uintptr(h.Base)%4096)

			for _, at := range []int{-1, n} {
				p := (*byte)(unsafe.Add(h.Base, at))
				*p ^= 0x80
				assert.Error(t, m.GuardsIntact(), "byte %d of memory of %d bytes", at, n)
				*p ^= 0x80
			}
		}
	}
}

func TestFillIsItsSeedAndDiffCounts(t *testing.T) {
	a, b := make([]byte, 1000), make([]byte, 1000)
	fabrictest.Fill(a, fabrictest.ClassSource, 1)
	fabrictest.Fill(b, fabrictest.ClassSource, 1)
	assert.Empty(t, fabrictest.Diff(a, b))
	b[3] ^= 1
	b[900] ^= 1
	assert.Contains(t, fabrictest.Diff(a, b), "2 bytes differ in [3, 900] of 1000")
	fabrictest.Fill(b, fabrictest.ClassSource, 2)
	assert.NotEmpty(t, fabrictest.Diff(a, b))
}
