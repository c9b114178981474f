package main

import (
	"bytes"
	"sync"
	"time"
)

// firstMark is the least of the owner's marks.
const firstMark = 128

// shape says where units lie: memory is [planes][units][piece] bytes.
type shape struct{ planes, units, piece int }

func (s shape) bytes() int { return s.planes * s.units * s.piece }

// at is one plane's piece of a unit.
func (s shape) at(mem []byte, plane, unit int) []byte {
	i := (plane*s.units + unit) * s.piece
	return mem[i : i+s.piece]
}

// watched is memory whose owner knows every byte of it: what it leased may change, all else may not.
type watched struct {
	shape
	name string
	mem  []byte
	tell func(late)

	mu     sync.Mutex
	want   []byte
	leased []bool
	taken  []string // by unit, how it was taken back
	looks  int      // at everything
	seen   *sync.Cond

	end  chan struct{}
	done chan struct{}
}

// late says that bytes changed which nobody may write.
type late struct {
	Event string `json:"event"`
	Where string `json:"where"`
	Unit  int    `json:"unit"`
	Bytes int    `json:"bytes"`
	Taken string `json:"taken"`
}

// watch begins to look at mem, all of which becomes the owner's.
func watch(name string, mem []byte, s shape, tell func(late)) *watched {
	w := &watched{shape: s, name: name, mem: mem[:s.bytes()], tell: tell, want: bytes.Repeat([]byte{255}, s.bytes()),
		leased: make([]bool, s.units), taken: make([]string, s.units), end: make(chan struct{}), done: make(chan struct{})}
	w.seen = sync.NewCond(&w.mu)
	copy(w.mem, w.want)
	go w.run()
	return w
}

func (w *watched) run() {
	defer close(w.done)
	for {
		for u := range w.units {
			w.look(u)
		}
		w.mu.Lock()
		w.looks++
		w.seen.Broadcast()
		w.mu.Unlock()
		select {
		case <-w.end:
			return
		case <-time.After(2 * time.Millisecond): // the daemons need the processors too
		}
	}
}

// stop ends the watching; the memory may be unmapped then.
func (w *watched) stop() {
	close(w.end)
	<-w.done
}

// look compares one unit. What is found is told once: the unit gets back what it must hold.
func (w *watched) look(unit int) {
	w.mu.Lock()
	changed, taken := 0, w.taken[unit]
	if !w.leased[unit] {
		for p := range w.planes {
			is, want := w.at(w.mem, p, unit), w.at(w.want, p, unit)
			if bytes.Equal(is, want) {
				continue
			}
			for i := range is {
				if is[i] != want[i] {
					changed++
				}
			}
			copy(is, want)
		}
	}
	w.mu.Unlock()
	if changed > 0 {
		w.tell(late{"late", w.name, unit, changed, taken})
	}
}

// lookAgain returns when everything was looked at once more, from its beginning to its end.
func (w *watched) lookAgain() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for at := w.looks + 2; w.looks < at; {
		w.seen.Wait()
	}
}

// give says that a peer may write these units from now on.
func (w *watched) give(units []int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range units {
		w.leased[u] = true
	}
}

// take says that these units are the owner's again, marks every byte of them, and returns whether some and whether all of their
// pieces had been written to their last byte.
func (w *watched) take(units []int, mark byte, how string) (some, whole bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	whole = true
	for _, u := range units {
		for p := range w.planes {
			is := w.at(w.mem, p, u)
			there := is[len(is)-1] < firstMark
			some, whole = some || there, whole && there
			fill(is, mark)
			copy(w.at(w.want, p, u), is)
		}
		w.leased[u], w.taken[u] = false, how
	}
	return some, whole
}

// begun says whether a first byte has arrived in one of the units.
func (w *watched) begun(units []int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range units {
		for p := range w.planes {
			if w.at(w.mem, p, u)[0] < firstMark {
				return true
			}
		}
	}
	return false
}

// wrong counts the bytes in which units differ from what the source has in its units from.
func (w *watched) wrong(units, from []int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n, want := 0, make([]byte, w.piece)
	for i, u := range units {
		for p := range w.planes {
			content(want, from[i], p)
			for j, b := range w.at(w.mem, p, u) {
				if b != want[j] {
					n++
				}
			}
		}
	}
	return n
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// content is what a source's unit holds in a plane: bytes below firstMark, others for every unit and plane.
func content(b []byte, unit, plane int) {
	x := uint32(unit)*2654435761 + uint32(plane)*40503 + 1
	for i := range b {
		if i&3 == 0 {
			x = x*1664525 + 1013904223
		}
		b[i] = byte(x>>(8+4*(i&3))) & (firstMark - 1)
	}
}
