package blockdb

// keyIndex finds COMMITTED blocks by their content keys: exact, and as large as the keyed blocks of its cache are many.
// It shares the keys' bytes with the mirror. A keyed block takes about 65 bytes beside its key's own (BenchmarkKeyIndex):
// 16 are the mirror's string, the rest is the map's.
type keyIndex struct {
	head map[string]uint32
	next []uint32 // by block: another block of the same key; nil until a key has two
}

// noBlock ends a chain of blocks of one key.
const noBlock = ^uint32(0)

func (x *keyIndex) add(key string, block uint32, blocks int) {
	if x.head == nil {
		x.head = map[string]uint32{}
	}
	old, twice := x.head[key]
	if twice && x.next == nil {
		x.next = make([]uint32, blocks)
		for i := range x.next {
			x.next[i] = noBlock
		}
	}
	if x.next != nil {
		x.next[block] = noBlock
		if twice {
			x.next[block] = old
		}
	}
	x.head[key] = block
}

func (x *keyIndex) remove(key string, block uint32) {
	at, ok := x.head[key]
	switch {
	case !ok:
	case at == block && (x.next == nil || x.next[block] == noBlock):
		delete(x.head, key)
	case at == block:
		x.head[key] = x.next[block]
	case x.next != nil:
		for ; at != noBlock; at = x.next[at] {
			if x.next[at] == block {
				x.next[at] = x.next[block]
				return
			}
		}
	}
}

// keyed notes a block's new key, "" for none. The caller holds mu.
func (c *Cache) keyed(block uint32, key string) {
	if key != "" && c.keys == nil {
		c.keys = make([]string, len(c.state))
	}
	if c.keys == nil {
		return
	}
	// A cache that is not attached serves nothing, so nobody looks there.
	if old := c.keys[block]; old != "" && c.attached {
		c.index.remove(old, block)
	}
	c.keys[block] = key
	if key != "" && c.attached {
		c.index.add(key, block, len(c.state))
	}
}

// Prefix appends to dst the blocks that hold the first keys of a packed list, size bytes each, as far as the cache has
// them COMMITTED without a gap. It sees one moment's state. A cache that is not attached holds nothing.
func (c *Cache) Prefix(dst []uint32, keys []byte, size int) []uint32 {
	c.db.mu.RLock()
	defer c.db.mu.RUnlock()
	for ; size > 0 && len(keys) >= size && c.attached; keys = keys[size:] {
		block, ok := c.index.head[string(keys[:size])]
		if !ok {
			break
		}
		dst = append(dst, block)
	}
	return dst
}

// copyKeys puts all keys into one allocation.
func copyKeys(keys [][]byte) []string {
	if keys == nil {
		return nil
	}
	var all []byte
	for _, k := range keys {
		all = append(all, k...)
	}
	text, out := string(all), make([]string, len(keys))
	for i, k := range keys {
		out[i], text = text[:len(k)], text[len(k):]
	}
	return out
}
