package fabrictest

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// session is a Session with the account of its operations. Its methods that end in "q" report failures without ending
// the goroutine; the others are for the test's own goroutine.
type session struct {
	Session
	e        *env
	from, to *node
}

// connect makes a session from A to B.
func (e *env) connect() *session {
	e.t.Helper()
	var s Session
	e.within("connecting a session", func() { s = e.pair.Connect(e.t) })
	e.attach(s)
	return &session{Session: s, e: e, from: e.a, to: e.b}
}

// connectBack makes a session from B to A.
func (e *env) connectBack() *session {
	e.t.Helper()
	var s Session
	e.within("connecting a session", func() { s = e.pair.ConnectBack(e.t) })
	e.attach(s)
	return &session{Session: s, e: e, from: e.b, to: e.a}
}

func (s *session) grant(r *region, a rdma.Access, b rdma.Bounds, deadline rdma.Instant) rdma.Key {
	s.e.t.Helper()
	k, err := s.Target.Grant(rdma.Window{Region: r.Region, Access: a, Bounds: b, Deadline: deadline})
	s.e.must(err, "Grant")
	return k
}

// open grants a window over the whole region for operations of a kind.
func (s *session) open(r *region, kind rdma.OpKind) rdma.Key {
	s.e.t.Helper()
	return s.grant(r, accessOf(kind), r.all(), 0)
}

// fence fences a window, every second time by a Target's TryFence where it has that: what it says is fenced is held to the same.
func (s *session) fence(k rdma.Key) {
	s.e.t.Helper()
	if f, ok := s.Target.(rdma.TryFencer); ok && s.e.ids.Add(1)%2 == 0 {
		fenced := false
		s.e.within("TryFence", func() { fenced = f.TryFence(k) })
		if fenced {
			return
		}
	}
	s.e.within("Fence", func() { s.e.noErr(s.Target.Fence(k), "Fence") })
}

// op makes an operation with an id that no other operation of the test has.
func (s *session) op(kind rdma.OpKind, local *region, key rdma.Key, ranges ...rdma.Range) rdma.Op {
	id := s.e.ids.Add(1)
	return rdma.Op{Kind: kind, ID: id, Local: local.Region, Remote: key, Ranges: ranges, Tag: id | 1<<63}
}

// try posts once. It hands over copies and scribbles over them afterwards, because the provider must have copied what
// it needs.
func (s *session) try(ops ...rdma.Op) (int, error) {
	given := make([]rdma.Op, len(ops))
	for i, o := range ops {
		o.Ranges = append([]rdma.Range(nil), o.Ranges...)
		given[i] = o
	}
	n, err := s.Initiator.Post(given)
	for i := range given {
		for j := range given[i].Ranges {
			given[i].Ranges[j] = rdma.Range{Local: 1 << 62, Remote: 1 << 62, Len: 1 << 62}
		}
		given[i] = rdma.Op{}
	}
	if n < 0 || n > len(ops) {
		s.e.errorf("Post of %d operations returned %d", len(ops), n)
		return 0, err
	}
	s.from.locked(func() {
		for _, o := range ops[:n] {
			s.from.taken[opKey{s.InitiatorID, o.ID}] = o.Bytes()
		}
		s.from.pending[s.InitiatorID] += n
	})
	return n, err
}

// postq posts all of ops, waiting for completions where the window is full. It gives up, with Post's error, when the
// session has ended, and with nil when stop is closed; stop may be nil.
func (s *session) postq(stop <-chan struct{}, ops ...rdma.Op) error {
	end := time.Now().Add(s.e.bound)
	for len(ops) > 0 {
		var before int
		s.from.locked(func() { before = s.from.endings[s.InitiatorID] })
		n, err := s.try(ops...)
		if err != nil {
			return err
		}
		ops = ops[n:]
		if len(ops) == 0 {
			return nil
		}
		if n > 0 {
			end = time.Now().Add(s.e.bound)
		}
		if time.Now().After(end) {
			return fault.New(fault.Internal, "fabrictest", "Post took nothing for %v", s.e.bound)
		}
		stopped := false
		ok := s.from.await("room in the session's window", func() bool {
			select {
			case <-stop:
				stopped = true
			default:
			}
			return stopped || s.from.endings[s.InitiatorID] > before || s.from.pending[s.InitiatorID] <= 0
		})
		if !ok || stopped {
			return nil
		}
	}
	return nil
}

func (s *session) post(ops ...rdma.Op) {
	s.e.t.Helper()
	s.e.within("Post", func() { s.e.noErr(s.postq(nil, ops...), "Post") })
	if s.e.t.Failed() {
		s.e.t.FailNow()
	}
}

// resultq waits for an operation's completion.
func (s *session) resultq(id uint64) (ev rdma.Event, ok bool) {
	s.e.t.Helper()
	ok = s.from.await("a completion", func() bool {
		c := s.from.ended[opKey{s.InitiatorID, id}]
		if c != nil {
			ev = c.Event
		}
		return c != nil
	})
	return ev, ok
}

func (s *session) result(id uint64) rdma.Event {
	s.e.t.Helper()
	ev, ok := s.resultq(id)
	if !ok {
		s.e.t.FailNow()
	}
	return ev
}

// do posts operations and requires each to end with status.
func (s *session) do(status fault.Code, ops ...rdma.Op) {
	s.e.t.Helper()
	s.post(ops...)
	s.ends(ops, status)
}

// ends requires each of ops to end with one of the statuses.
func (s *session) ends(ops []rdma.Op, allowed ...fault.Code) {
	s.e.t.Helper()
	for _, o := range ops {
		ev := s.result(o.ID)
		found := false
		for _, c := range allowed {
			found = found || ev.Status == c
		}
		if !found {
			s.e.t.Fatalf("%s of %d ranges and %d bytes ended with status %v; allowed: %v",
				kindName(o.Kind), len(o.Ranges), o.Bytes(), statusName(ev.Status), names(allowed))
		}
	}
}

// saysWrote: when every WRITE of ops failed and bytes of theirs are in remote, at least one must admit it.
func (s *session) saysWrote(ops []rdma.Op, remote *region) {
	s.e.t.Helper()
	for _, o := range ops {
		if ev := s.result(o.ID); ev.Status == 0 || ev.Wrote {
			return
		}
	}
	if CountClass(remote.bytes(), ClassSource) > 0 {
		s.e.t.Fatalf("%d WRITEs failed and left bytes at the target, but all say that nothing was written", len(ops))
	}
}

func statusName(c fault.Code) string {
	if c == 0 {
		return "success"
	}
	return c.String()
}

func names(cs []fault.Code) []string {
	out := make([]string, len(cs))
	for i, c := range cs {
		out[i] = statusName(c)
	}
	return out
}

func ids(ops []rdma.Op) []uint64 {
	out := make([]uint64, len(ops))
	for i := range ops {
		out[i] = ops[i].ID
	}
	return out
}

// flush moves traffic through the session until what was delayed before it has surely been delivered: enough
// operations to use every lane, twice. Then it watches a little longer; the watch can only find more.
func (s *session) flush(watch func()) {
	s.e.t.Helper()
	const n, size = 32, 16 << 10
	for _, kind := range s.e.kinds() {
		local := s.e.region(s.from, n*size, 0, ClassTarget)
		remote := s.e.region(s.to, n*size, 0, ClassTarget)
		key := s.open(remote, kind)
		for range 2 {
			ops := make([]rdma.Op, n)
			for i := range ops {
				off := uint64(i * size)
				ops[i] = s.op(kind, local, key, rdma.Range{Local: off, Remote: off, Len: size})
			}
			s.do(0, ops...)
			watch()
		}
		s.fence(key)
	}
	s.e.linger(watch)
}

// linger watches for what must not happen. A short watch is never wrong, it only finds less.
func (e *env) linger(watch func()) {
	for range 10 {
		time.Sleep(2 * time.Millisecond)
		watch()
	}
}
