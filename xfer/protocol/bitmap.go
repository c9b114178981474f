package protocol

import mathbits "math/bits"

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

// setRange adds n pieces from first on and says how many were missing. It looks at 64 at a time.
func (b bitmap) setRange(first, n uint64) (fresh uint32) {
	for i, end := first, first+n; i < end; {
		m, left := ^uint64(0)<<(i%64), 64-i%64
		if rest := end - i; rest < left {
			m &= 1<<(i%64+rest) - 1
			left = rest
		}
		w := &b[i/64]
		fresh += uint32(mathbits.OnesCount64(m &^ *w))
		*w |= m
		i += left
	}
	return fresh
}

// grown returns the bitmap with room for n bits; bits that are set stay so.
func (b bitmap) grown(n uint64) bitmap {
	for uint64(len(b))*64 < n {
		b = append(b, 0)
	}
	return b
}
