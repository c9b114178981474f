package node

import (
	"sync"
	"time"
)

// reader reads something for a scraper that must have its answer in time, from a source that may stand still: the block store
// keeps its counts under the lock under which it writes to the disk, and a card's counters are asked of its firmware. Then what
// was read last is shown again.
type reader[T any] struct {
	read  func() T
	begin func(func()) // starts a goroutine that the node's end waits for

	mu      sync.Mutex
	last    T
	reading chan struct{} // closed when the read in progress is done; nil: there is none
}

// readWait is how long a scraper waits for the source.
const readWait = 500 * time.Millisecond

func (s *reader[T]) get() T {
	s.mu.Lock()
	if s.reading == nil {
		done := make(chan struct{})
		s.reading = done
		s.begin(func() {
			got := s.read()
			s.mu.Lock()
			defer s.mu.Unlock()
			s.last, s.reading = got, nil
			close(done)
		})
	}
	reading := s.reading
	s.mu.Unlock()
	timer := time.NewTimer(readWait)
	defer timer.Stop()
	select {
	case <-reading:
	case <-timer.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}
