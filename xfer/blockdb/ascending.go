package blockdb

import "slices"

// ranked is a block and its place in the list that the caller gave: block<<32 | index.
type ranked uint64

func (r ranked) block() uint32 { return uint32(r >> 32) }
func (r ranked) index() int    { return int(uint32(r)) }

// ascending gives the blocks of a list in the order of their keys in the log. Pebble puts a batch into its write buffer
// record by record, and finds the place of one faster where that of its neighbour was (BenchmarkScattered). The result
// holds until the next call; wmu is held.
func (d *DB) ascending(blocks []uint32) []ranked {
	d.order = d.order[:0]
	for i, n := range blocks {
		d.order = append(d.order, ranked(n)<<32|ranked(i))
	}
	if !slices.IsSorted(d.order) {
		slices.Sort(d.order)
	}
	return d.order
}
