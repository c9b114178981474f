package nic

import "strings"

// CompareNames orders names with numbers in them as people do: mlx5_2 before mlx5_10. Only equal names compare as 0.
func CompareNames(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == 0 || y == 0 {
			if a[0] != b[0] {
				return int(a[0]) - int(b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		m, n := strings.TrimLeft(a[:x], "0"), strings.TrimLeft(b[:y], "0")
		if len(m) != len(n) {
			return len(m) - len(n)
		}
		if c := strings.Compare(m, n); c != 0 {
			return c
		}
		if x != y {
			return x - y // "01" behind "1": equal only what is the same
		}
		a, b = a[x:], b[y:]
	}
	return len(a) - len(b)
}

// digits is how many of them s begins with.
func digits(s string) (n int) {
	for n < len(s) && s[n] >= '0' && s[n] <= '9' {
		n++
	}
	return n
}
