package pick

import "math"

// choice is one joined row and column.
type choice struct{ here, there int }

// Weights of what makes one way worse than another. Each is more than MaxRails times the most of the next one can add up to, so
// that the first difference decides for all pairs together; free is more than any pair costs, so that no pair is saved.
const (
	weightNUMA = MaxRails * MaxRails * MaxRails
	weightGID  = weightNUMA * MaxRails * 2
	weightKind = weightGID * MaxRails * 8
	free       = weightKind * MaxRails * 4
)

// cost of joining a row and a column. The square of how far apart they are in order makes the first go with the first, the second
// with the second, where nothing else decides.
func (t *table) cost(i, j int) int64 {
	w := &t.ways[i][j]
	if w.kind == never {
		return free
	}
	c := int64(w.kind)*weightKind + int64(rank(w.own)+rank(w.other))*weightGID + int64((i-j)*(i-j))
	if t.numa[i] >= 0 && t.numaP[j] >= 0 && t.numa[i] != t.numaP[j] {
		c += weightNUMA
	}
	return c
}

// assign joins as many rails as can be one to one, at the lowest cost in all. It is the Hungarian method with potentials, on a
// square of which the missing rows and columns cost what not being joined costs.
func (t *table) assign() (out []choice) {
	rows, cols := len(t.ways), len(t.numaP)
	n := max(rows, cols)
	cost := func(i, j int) int64 {
		if i >= rows || j >= cols {
			return free
		}
		return t.cost(i, j)
	}
	// Rows and columns count from 1; column 0 stands for the row that is being placed.
	u, v := make([]int64, n+1), make([]int64, n+1)
	rowOf, before := make([]int, n+1), make([]int, n+1)
	for i := 1; i <= n; i++ {
		rowOf[0] = i
		least, done := make([]int64, n+1), make([]bool, n+1)
		for j := range least {
			least[j] = math.MaxInt64
		}
		at := 0
		for rowOf[at] != 0 {
			done[at] = true
			row, next, delta := rowOf[at], 0, int64(math.MaxInt64)
			for j := 1; j <= n; j++ {
				if done[j] {
					continue
				}
				if c := cost(row-1, j-1) - u[row] - v[j]; c < least[j] {
					least[j], before[j] = c, at
				}
				if least[j] < delta {
					delta, next = least[j], j
				}
			}
			for j := 0; j <= n; j++ {
				if done[j] {
					u[rowOf[j]] += delta
					v[j] -= delta
				} else {
					least[j] -= delta
				}
			}
			at = next
		}
		for at != 0 {
			rowOf[at] = rowOf[before[at]]
			at = before[at]
		}
	}
	for j := 1; j <= cols; j++ {
		if i := rowOf[j] - 1; i < rows && t.ways[i][j-1].kind != never {
			out = append(out, choice{i, j - 1})
		}
	}
	return out
}

// share gives the rails that are left over a partner that has one already: the one with the fewest, then the cheapest. A way that
// is worse than the best of those in use is not taken: a card that is joined through a router only, as that of a
// management network, would carry what the others carry better.
func (t *table) share(chosen *[]choice) {
	best := never
	here, there := make([]int, len(t.ways)), make([]int, len(t.numaP))
	for _, c := range *chosen {
		best = min(best, t.ways[c.here][c.there].kind)
		here[c.here]++
		there[c.there]++
	}
	add := func(i, j int) {
		*chosen = append(*chosen, choice{i, j})
		here[i]++
		there[j]++
	}
	for i := range here {
		if here[i] > 0 {
			continue
		}
		to := -1
		for j := range there {
			if t.ways[i][j].kind <= best && best != never && (to < 0 || less(there[j], t.cost(i, j), there[to], t.cost(i, to))) {
				to = j
			}
		}
		if to >= 0 {
			add(i, to)
		}
	}
	for j := range there {
		if there[j] > 0 {
			continue
		}
		from := -1
		for i := range here {
			if t.ways[i][j].kind <= best && best != never && (from < 0 || less(here[i], t.cost(i, j), here[from], t.cost(from, j))) {
				from = i
			}
		}
		if from >= 0 {
			add(from, j)
		}
	}
}

func less(users int, cost int64, users2 int, cost2 int64) bool {
	return users < users2 || users == users2 && cost < cost2
}
