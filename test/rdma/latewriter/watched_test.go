package main

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// found collects what a watched tells.
type found struct {
	mu   sync.Mutex
	list []late
}

func (f *found) add(l late) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = append(f.list, l)
}

func (f *found) all() []late {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]late(nil), f.list...)
}

func TestLateBytesAreFound(t *testing.T) {
	s := shape{planes: 4, units: 8, piece: 64}
	mem := make([]byte, s.bytes())
	var f found
	w := watch("test", mem, s, f.add)
	defer w.stop()
	change := func(plane, unit, n int) { // as a peer does, but without a race: between two looks
		w.mu.Lock()
		defer w.mu.Unlock()
		for i := range n {
			s.at(mem, plane, unit)[i] = 1
		}
	}
	w.lookAgain()
	assert.Empty(t, f.all())

	w.give([]int{2, 5})
	change(0, 2, 64)
	w.lookAgain()
	assert.Empty(t, f.all(), "a leased unit may change")
	assert.True(t, w.begun([]int{2, 5}))
	assert.False(t, w.begun([]int{5}))

	some, whole := w.take([]int{2, 5}, 200, "push: revoke")
	assert.True(t, some)
	assert.False(t, whole)
	w.lookAgain()
	assert.Empty(t, f.all(), "what was there before is not late")
	assert.Equal(t, byte(200), s.at(mem, 3, 5)[63], "marked")

	change(1, 2, 3)
	change(3, 2, 4)
	change(0, 7, 1)
	w.lookAgain()
	w.lookAgain()
	assert.Equal(t, []late{{"late", "test", 2, 7, "push: revoke"}, {"late", "test", 7, 1, ""}}, f.all(), "each byte once")
}

func TestContentDiffers(t *testing.T) {
	s := shape{planes: 2, units: 4, piece: 512}
	mem := make([]byte, s.bytes())
	w := watch("test", mem, s, func(late) {})
	defer w.stop()
	w.give([]int{0, 1, 2, 3})
	w.mu.Lock()
	for u := range s.units {
		for p := range s.planes {
			content(s.at(mem, p, u), u, p)
			for _, b := range s.at(mem, p, u) {
				assert.Less(t, b, byte(firstMark), "no source holds a mark")
			}
		}
	}
	w.mu.Unlock()
	assert.Zero(t, w.wrong([]int{3, 1}, []int{3, 1}))
	assert.Greater(t, w.wrong([]int{3, 1}, []int{1, 3}), 1500, "another unit's bytes are not taken for these")
	w.mu.Lock()
	s.at(mem, 1, 2)[9] ^= 1
	w.mu.Unlock()
	assert.Equal(t, 1, w.wrong([]int{2}, []int{2}))
}
