package protocol

// bitmap is a set of piece numbers.
type bitmap []uint64

func newBitmap(n uint64) bitmap { return make(bitmap, (n+63)/64) }

// set adds i and says whether it was missing.
func (b bitmap) set(i uint64) bool {
	w, m := i/64, uint64(1)<<(i%64)
	fresh := b[w]&m == 0
	b[w] |= m
	return fresh
}

// grown returns the bitmap with room for n bits; bits that are set stay so.
func (b bitmap) grown(n uint64) bitmap {
	for uint64(len(b))*64 < n {
		b = append(b, 0)
	}
	return b
}
