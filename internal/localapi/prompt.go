package localapi

import "github.com/kvxfer/kvxfer/internal/wire"

// promptBytes is the largest array of a request that is run where it is read: what takes longer must not hold up the quick
// kinds behind it.
const promptBytes = 64 << 10

// prompt says whether a request waits for nobody, so that it can be run where it is read. Each takes a few locks, and at most
// one record of the journal, which goes into the kernel's memory and waits for no disk.
func prompt(r *request) bool {
	if len(r.Array) > promptBytes {
		return false
	}
	switch r.Kind {
	case wire.KindPush, wire.KindPull, wire.KindScatter, wire.KindAdvertise:
		return true
	case wire.KindLease:
		return !long(r)
	}
	return false
}

// atOnce runs a request on the reader's goroutine, where that costs no other request its turn; else it is to be queued. To wake
// a goroutine for it would take longer than most requests do.
func (c *client) atOnce(r *request) bool {
	evict := r.Kind == wire.KindEvict && len(r.Array) <= promptBytes
	if !evict && !prompt(r) || !c.requests.idle() || !c.out.hasRoom() {
		return false
	}
	if evict {
		return c.evictAtOnce(r)
	}
	c.run1(r)
	return true
}

// evictAtOnce is EVICT where no fence has to be waited for.
func (c *client) evictAtOnce(r *request) bool {
	var q wire.Evict
	if r.Decode(&q) != nil {
		return false // the queue says what is wrong
	}
	blocks, err := wire.U32s("blocks", r.Array)
	if err != nil {
		return false
	}
	done, err := c.s.o.Engine.TryEvict(c.id, q.Cache, blocks)
	if done {
		c.answer(r, nil, nil, err, false)
	}
	return done
}
