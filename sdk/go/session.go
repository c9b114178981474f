package kvxfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// handle is a permission or a transfer, as its session sees it.
type handle interface {
	at() string       // the name of the cache or region; "" where it is on other nodes
	exitFences() bool // whether the exit of this node's daemon is a fence
	onLost(*fault.Error)
	onFenced()
}

// grantHandle is a permission as events see it; onEnded says whether its memory is released.
type grantHandle interface {
	handle
	onLayers(layers []uint32) error
	onHolder(*wire.HolderEvent, []byte)
	onEnded(*wire.LeaseEvent, []byte) (released bool)
}

// transferHandle is a transfer as events see it; onTransfer says whether its memory is released.
type transferHandle interface {
	handle
	onTransfer(*wire.TransferEvent) (released bool)
	onReleased()
	isOver() bool
}

// session is one greeted connection and what is on it. A handle stays in its table until its memory is released: until
// then its daemon may still touch it.
type session struct {
	conn   *connection
	client *Client    // who reports what has ended, and sends spans
	hello  wire.Hello // the daemon's

	mu        sync.Mutex // never held while a handle is called
	leases    map[uint64]grantHandle
	transfers map[uint64]transferHandle
	asked     map[transferHandle]struct{} // whose request is not answered and nobody waits for
	caches    map[uint64]*Cache

	making chan struct{} // has room for who makes the poster
	poster *poster       // with the first prepared transfer; under mu
}

func newSession(conn *connection, c *Client) *session {
	return &session{conn: conn, client: c, leases: map[uint64]grantHandle{}, transfers: map[uint64]transferHandle{},
		asked: map[transferHandle]struct{}{}, caches: map[uint64]*Cache{}, making: make(chan struct{}, 1)}
}

// greet starts the connection and says HELLO.
func (s *session) greet(ctx context.Context, hello *wire.Hello) *fault.Error {
	s.conn.start(s)
	fe, _ := s.conn.request(ctx, request{op: "connect", kind: wire.KindHello, body: hello, onOK: func(f *wire.Frame) error {
		if f.Kind != wire.KindHelloOK {
			return violated("kind", "HELLO was not answered by HELLO_OK")
		}
		if err := f.Decode(&s.hello); err != nil {
			return err
		}
		if v := s.hello.Version; v < wire.MinVersion || v > wire.MaxVersion {
			return fault.New(fault.VersionMismatch, "connect", "the daemon chose %d, this side speaks %d..%d", v, wire.MinVersion, wire.MaxVersion)
		}
		return nil
	}})
	return fe
}

// Handles. They are added by the connection's reader, in the order of its frames.

func (s *session) addLease(n uint64, h grantHandle) {
	s.mu.Lock()
	s.leases[n] = h
	s.mu.Unlock()
}

func (s *session) addTransfer(n uint64, h transferHandle) {
	s.mu.Lock()
	s.transfers[n] = h
	s.mu.Unlock()
}

func (s *session) addCache(n uint64, c *Cache) {
	s.mu.Lock()
	s.caches[n] = c
	s.mu.Unlock()
}

// ask says, before a transfer's request is sent, that from here on its memory may be touched.
func (s *session) ask(h transferHandle) {
	s.mu.Lock()
	s.asked[h] = struct{}{}
	s.mu.Unlock()
}

// answered says that the request has its answer.
func (s *session) answered(h transferHandle) {
	s.mu.Lock()
	delete(s.asked, h)
	s.mu.Unlock()
}

func (s *session) handles() []handle {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]handle, 0, len(s.leases)+len(s.transfers)+len(s.asked))
	for _, h := range s.leases {
		out = append(out, h)
	}
	for _, h := range s.transfers {
		out = append(out, h)
	}
	for h := range s.asked {
		out = append(out, h)
	}
	return out
}

// holds says whether something on that cache or region is not released.
func (s *session) holds(place string) bool {
	for _, h := range s.handles() {
		if h.at() == place {
			return true
		}
	}
	return false
}

// fenced ends every handle on that cache or region: the daemon gave it back, or this session's daemon is gone.
func (s *session) fenced(place string) {
	var over []handle
	s.mu.Lock()
	for n, h := range s.leases {
		if h.at() == place {
			delete(s.leases, n)
			over = append(over, h)
		}
	}
	for n, h := range s.transfers {
		if h.at() == place {
			delete(s.transfers, n)
			over = append(over, h)
		}
	}
	for h := range s.asked {
		if h.at() == place {
			delete(s.asked, h)
			over = append(over, h)
		}
	}
	s.mu.Unlock()
	for _, h := range over {
		h.onFenced()
	}
	if !s.conn.alive() {
		s.conn.lookAgain()
	}
}

// endSpan takes a finished span.
func (s *session) endSpan(sp *span, fe *fault.Error) {
	var err error
	if fe != nil {
		err = fe
	}
	s.client.endSpan(sp, err)
}

// The connection's listener.

func (s *session) onEvent(f *wire.Frame) error {
	switch f.Kind {
	case wire.KindEventLayers:
		v, err := wire.ParseLayersVisible(f.Array)
		if err != nil {
			return err
		}
		if h := s.lease(v.Lease); h != nil {
			return h.onLayers(v.Layers)
		}
	case wire.KindEventHolder:
		var e wire.HolderEvent
		if err := f.Decode(&e); err != nil {
			return err
		}
		if h := s.lease(e.Lease); h != nil {
			h.onHolder(&e, f.Array)
		}
	case wire.KindEventLease:
		var e wire.LeaseEvent
		if err := f.Decode(&e); err != nil {
			return err
		}
		if h := s.lease(e.Lease); h != nil && h.onEnded(&e, f.Array) {
			s.mu.Lock()
			delete(s.leases, e.Lease)
			s.mu.Unlock()
		}
	case wire.KindEventTransfer:
		var e wire.TransferEvent
		if err := f.Decode(&e); err != nil {
			return err
		}
		s.mu.Lock()
		h := s.transfers[e.Transfer]
		s.mu.Unlock()
		if h != nil && h.onTransfer(&e) {
			s.mu.Lock()
			delete(s.transfers, e.Transfer)
			s.mu.Unlock()
		}
	case wire.KindEventReleased:
		var e wire.Released
		if err := f.Decode(&e); err != nil {
			return err
		}
		s.mu.Lock()
		h := s.transfers[e.Transfer]
		s.mu.Unlock()
		if h == nil {
			return nil
		}
		if !h.isOver() {
			return violated("transfer", "%d is released before its end was told", e.Transfer)
		}
		s.mu.Lock()
		delete(s.transfers, e.Transfer)
		s.mu.Unlock()
		h.onReleased()
	case wire.KindEventPrepared:
		var e wire.PreparedEvent
		if err := f.Decode(&e); err != nil {
			return err
		}
		s.mu.Lock()
		p, ok := s.transfers[e.Transfer].(*Prepared)
		s.mu.Unlock()
		if ok {
			p.onPrepared(&e)
		}
	case wire.KindEventPosted:
		return s.onPosted(f.Array)
	case wire.KindEventGranted:
		var e wire.GrantedEvent
		if err := f.Decode(&e); err != nil {
			return err
		}
		s.mu.Lock()
		c := s.caches[e.Cache]
		s.mu.Unlock()
		if c != nil {
			return c.onGranted(s, &e, f.Array)
		}
	}
	// An event of another kind comes from a newer daemon and says nothing that this version needs.
	return nil
}

func (s *session) lease(n uint64) grantHandle {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[n]
}

func (s *session) onLost(fe *fault.Error) {
	for _, h := range s.handles() {
		h.onLost(fe)
	}
	s.mu.Lock()
	caches := s.caches
	s.caches = map[uint64]*Cache{}
	for n, h := range s.leases {
		if !h.exitFences() { // of memory on other nodes no word will come on this connection
			delete(s.leases, n)
		}
	}
	s.mu.Unlock()
	for _, c := range caches {
		c.granted.lost(fe)
	}
	s.endPosts(fe)
}

func (s *session) onDaemonExit() {
	over := s.handles()
	s.mu.Lock()
	clear(s.leases)
	clear(s.transfers)
	clear(s.asked)
	s.mu.Unlock()
	for _, h := range over {
		h.onFenced()
	}
}

func (s *session) awaitsExit() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.leases)+len(s.transfers)+len(s.asked) > 0
}
