package blockdb

// Range calls f for every block from a number on, FREE ones too, ascending, until f returns false. f sees one moment's
// state, must not call the database and must not keep a key; of a cache that is not attached any more it sees nothing.
func (c *Cache) Range(from uint32, f func(Record) bool) {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	for n := uint64(from); n < uint64(len(c.state)); n++ {
		if !f(c.record(uint32(n))) {
			return
		}
	}
}
