package registry

import (
	"slices"
	"time"
)

// Told notes that the directory told of the entry under key at that moment of the reader's clock.
func (f *Feed) Told(key string, now time.Time) {
	k, err := ParseKey(key)
	if err != nil || !k.IsNode() {
		return
	}
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	if _, known := f.v.nodes[k.Node]; known {
		f.v.told[k.Node] = now
	}
}

// Told says when the directory last told of a node: of a change, or when it showed everything again. It is no sign of life:
// a node that gives none is taken out of the view. false: the node is not known.
func (v *View) Told(node string) (time.Time, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t, ok := v.told[node]
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
