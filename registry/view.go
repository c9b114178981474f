package registry

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// View is what this process knows of the directory, in memory. It answers while the directory is away. Methods may
// be called from any number of goroutines.
type View struct {
	mu        sync.Mutex
	nodes     map[string]Node
	caches    map[Key]Cache
	connected bool
	told      map[string]time.Time // nodes: when the directory last told of them
	sorted    *sortedView          // nil after a change, made again by the next reader
	changed   chan struct{}        // nil while nobody waits
}

// sortedView is the form that lists are answered from; it is never changed once made.
type sortedView struct {
	nodes  []Node
	caches map[string][]Cache // by tenant
}

// NewView makes an empty view and the feed that fills it.
func NewView() (*View, *Feed) {
	v := &View{nodes: map[string]Node{}, caches: map[Key]Cache{}, told: map[string]time.Time{}}
	return v, &Feed{v: v, slots: map[Key]*slot{}}
}

// Node returns the node of that name.
func (v *View) Node(name string) (Node, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, ok := v.nodes[name]
	return n, ok
}

// Cache returns a tenant's cache of that name on that node, as long as the node is there under the epoch that published it.
func (v *View) Cache(node, tenant, name string) (Cache, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	n, ok := v.nodes[node]
	if !ok {
		return Cache{}, false
	}
	c, ok := v.caches[Key{Node: node, Epoch: n.Epoch, Tenant: tenantOf(tenant), Cache: name}]
	return c, ok
}

// Nodes lists the nodes by name. The slice is the caller's.
func (v *View) Nodes() []Node { return slices.Clone(v.lists().nodes) }

// Caches lists a tenant's caches on the nodes that are there, by node and name; entries of a node that is gone or has
// another epoch are left out. There is no list of all tenants' caches: who asks, asks for somebody. The slice is the caller's.
func (v *View) Caches(tenant string) []Cache { return slices.Clone(v.lists().caches[tenantOf(tenant)]) }

// Connected says whether the view follows the directory now. While it is false the answers may be stale.
func (v *View) Connected() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.connected
}

// Changed returns a channel that is closed by the next change of what the view answers, Connected included. To wait
// for a condition: take the channel, then test the condition, then wait.
func (v *View) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.changed == nil {
		v.changed = make(chan struct{})
	}
	return v.changed
}

func (v *View) lists() *sortedView {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sorted == nil {
		s := &sortedView{nodes: make([]Node, 0, len(v.nodes)), caches: map[string][]Cache{}}
		for _, n := range v.nodes {
			s.nodes = append(s.nodes, n)
		}
		for k, c := range v.caches {
			if n, ok := v.nodes[k.Node]; ok && n.Epoch == k.Epoch {
				s.caches[k.Tenant] = append(s.caches[k.Tenant], c)
			}
		}
		slices.SortFunc(s.nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
		for _, of := range s.caches {
			slices.SortFunc(of, func(a, b Cache) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) })
		}
		v.sorted = s
	}
	return v.sorted
}

// touch marks a change; v.mu is held.
func (v *View) touch() {
	v.sorted = nil
	if v.changed != nil {
		close(v.changed)
		v.changed = nil
	}
}

// Feed fills a View. It belongs to the one goroutine that follows the directory; it has no clock of its own.
type Feed struct {
	v     *View
	sync  uint64 // number of the present or latest synchronisation
	slots map[Key]*slot
}

// slot is one entry that the view holds.
type slot struct {
	raw    []byte    // as last decoded: a heartbeat that repeats it changes nothing and costs no decoding
	sync   uint64    // the synchronisation that showed it last
	doomed time.Time // when it vanishes unless it is shown again; zero: not doomed
}

// Put takes the entry stored under key. An entry that cannot be read, or that does not belong under its key, is an
// error and changes nothing.
func (f *Feed) Put(key string, raw []byte) error {
	k, err := ParseKey(key)
	if err != nil {
		return err
	}
	s := f.slots[k]
	if s != nil && bytes.Equal(s.raw, raw) {
		s.sync, s.doomed = f.sync, time.Time{}
		return nil
	}
	if k.IsNode() {
		n, err := DecodeNode(raw)
		if err != nil {
			return err
		}
		if n.Key() != k {
			return misplaced(key)
		}
		f.v.mu.Lock()
		f.v.nodes[k.Node] = n
	} else {
		c, err := DecodeCache(raw)
		if err != nil {
			return err
		}
		if c.Key() != k {
			return misplaced(key)
		}
		f.v.mu.Lock()
		f.v.caches[k] = c
	}
	f.v.touch()
	f.v.mu.Unlock()
	f.slots[k] = &slot{raw: bytes.Clone(raw), sync: f.sync}
	return nil
}

// Drop takes that key was deleted or has expired. A key that is not of this registry is ignored.
func (f *Feed) Drop(key string) {
	if k, err := ParseKey(key); err == nil {
		f.drop(k)
	}
}

// BeginSync starts a synchronisation: the directory is about to show everything it holds.
func (f *Feed) BeginSync() { f.sync++ }

// EndSync ends it and marks the view connected. An entry that was not shown is not dropped at once but at doom:
// after the directory lost its contents every owner writes its entries again, and a view that emptied itself in
// between would turn a directory's restart into an outage.
func (f *Feed) EndSync(doom time.Time) {
	for _, s := range f.slots {
		if s.sync != f.sync && s.doomed.IsZero() {
			s.doomed = doom
		}
	}
	f.setConnected(true)
}

// Expire drops the entries whose doom has come.
func (f *Feed) Expire(now time.Time) {
	for k, s := range f.slots {
		if !s.doomed.IsZero() && !now.Before(s.doomed) {
			f.drop(k)
		}
	}
}

// Disconnect marks the view stale. Doomed entries are pardoned, since their owners cannot repeat them meanwhile; the
// next synchronisation judges anew.
func (f *Feed) Disconnect() {
	for _, s := range f.slots {
		s.doomed = time.Time{}
	}
	f.setConnected(false)
}

func (f *Feed) setConnected(c bool) {
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	if f.v.connected != c {
		f.v.connected = c
		f.v.touch()
	}
}

func (f *Feed) drop(k Key) {
	if _, ok := f.slots[k]; !ok {
		return
	}
	delete(f.slots, k)
	f.v.mu.Lock()
	defer f.v.mu.Unlock()
	if k.IsNode() {
		delete(f.v.nodes, k.Node)
		delete(f.v.told, k.Node)
	} else {
		delete(f.v.caches, k)
	}
	f.v.touch()
}

func misplaced(key string) error {
	return fault.Invalid("", "entry", "its names are not those of its key %.200q", key)
}
