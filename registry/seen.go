package registry

import (
	"slices"
	"time"
)

// Seen notes that the directory told of the entry under key at that moment of the reader's clock: a change, or the
// heartbeat that repeats it.
func (f *Feed) Seen(key string, now time.Time) {
	k, err := ParseKey(key)
	if err != nil || !k.IsNode() {
		return
	}
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	if _, known := f.v.nodes[k.Node]; known {
		f.v.seen[k.Node] = now
	}
}

// Seen says when the directory last told of a node; false: the node is not known. A live node's heartbeats come several
// times in an entry's time to live, as long as the view is connected.
func (v *View) Seen(node string) (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, ok := v.seen[node]
	return t, ok
}

// Tenants lists the tenants that have caches on the nodes that are there, in order.
func (v *View) Tenants() []string {
	caches := v.lists().caches
	out := make([]string, 0, len(caches))
	for t := range caches {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}
