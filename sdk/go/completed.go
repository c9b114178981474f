package kvxfer

import "sync"

// maxCompleted bounds what is kept for a program that has never asked.
const maxCompleted = 4096

// completed is what has ended since it was last asked.
type completed struct {
	mu    sync.Mutex
	list  []Ended
	asked bool
	ready chan struct{} // has room for one word
}

func newCompleted() *completed { return &completed{ready: make(chan struct{}, 1)} }

func (c *completed) add(e Ended) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.asked && len(c.list) >= maxCompleted {
		c.list[0] = nil
		c.list = c.list[1:]
	}
	c.list = append(c.list, e)
	select {
	case c.ready <- struct{}{}:
	default:
	}
}

func (c *completed) take() []Ended {
	c.mu.Lock()
	out := c.list
	c.list, c.asked = nil, true
	select {
	case <-c.ready:
	default:
	}
	c.mu.Unlock()
	for _, e := range out {
		<-e.Done() // it was added in the middle of its end
	}
	return out
}
