package nic

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCompareNames(t *testing.T) {
	want := []string{"", "1", "01", "2", "a", "mlx5_", "mlx5_0", "mlx5_00", "mlx5_2", "mlx5_10", "mlx5_10x", "mlx5_bond_0", "rxe0"}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, CompareNames)
	assert.Equal(t, want, got)
}

func FuzzCompareNames(f *testing.F) {
	f.Add("mlx5_2", "mlx5_10", "mlx5_010")
	f.Fuzz(func(t *testing.T, a, b, c string) {
		x, y, z := CompareNames(a, b), CompareNames(b, c), CompareNames(a, c)
		if (x == 0) != (a == b) || (x < 0) != (CompareNames(b, a) > 0) || x <= 0 && y <= 0 && z > 0 {
			t.Fatalf("%q %q %q: %d %d %d", a, b, c, x, y, z)
		}
	})
}
