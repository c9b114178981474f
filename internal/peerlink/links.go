package peerlink

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer"
)

// Links is all control connections of one node. It implements xfer.Dialer. Methods may be called from any goroutine.
type Links struct {
	opt      Options
	ctx      context.Context // ends with Close: stops handshakes and flights
	cancel   context.CancelFunc
	wg       sync.WaitGroup // handshakes, flights, links and the heartbeat; Add only under mu while not closed
	sessions atomic.Uint64

	door  door // of connections in their hello
	lanes door // of lanes in theirs

	strangers strangers

	mu       sync.Mutex
	closed   bool
	draining bool
	links    map[*link]struct{} // everything with a connection after its hello
	out      map[peerKey]*link  // dialed links that are up
	flights  map[peerKey]*flight
	shuns    map[way]shunned
	stopBeat chan struct{} // nil while there are no links
}

var _ xfer.Dialer = (*Links)(nil)

// peerKey names what there is one outgoing link of. only is the one provider that the link may use; "": the best besides those of
// without, which are sorted and joined by commas.
type peerKey struct{ node, epoch, tenant, only, without string }

func keyOf(ref *xfer.PeerRef) peerKey {
	k := peerKey{node: ref.Node, epoch: ref.Epoch, tenant: ref.Tenant, only: ref.Provider}
	if k.only == "" && len(ref.Without) > 0 {
		k.without = strings.Join(slices.Compact(slices.Sorted(slices.Values(ref.Without))), ",")
	}
	return k
}

// way is a provider to a peer's incarnation.
type way struct{ node, epoch, provider string }

// New makes an empty set of links. It fails with InvalidArgument for an option outside its range.
func New(opt Options) (*Links, error) {
	opt.ensureDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	s := &Links{opt: opt, links: map[*link]struct{}{}, out: map[peerKey]*link{}, flights: map[peerKey]*flight{}, shuns: map[way]shunned{}}
	s.door.max, s.lanes.max = opt.MaxHandshakes, opt.MaxHandshakes
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

var errClosed error = fault.New(fault.Closed, "peer link", "the node has closed its links")

func (s *Links) nextSession() rdma.SessionID {
	if s.opt.NextSession != nil {
		return s.opt.NextSession()
	}
	return rdma.SessionID(s.sessions.Add(1))
}

// enter counts a goroutine that Close joins; false after Close. wg.Done must follow.
func (s *Links) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.wg.Add(1)
	return true
}

// refusal is why no new link is made now; nil: one may be. mu is held.
func (s *Links) refusal() error {
	switch {
	case s.closed:
		return errClosed
	case s.draining:
		return fault.New(fault.Draining, "peer link", "node %q is draining", s.opt.Node)
	}
	return nil
}

// add takes a link in; its end takes it out. Until then Close waits for it.
func (s *Links) add(l *link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.refusal(); err != nil {
		return err
	}
	if len(s.links) >= s.opt.MaxLinks {
		return fault.New(fault.ResourceExhausted, "peer link", "node %q has its %d links", s.opt.Node, s.opt.MaxLinks)
	}
	s.links[l] = struct{}{}
	s.wg.Add(1)
	if s.stopBeat == nil {
		s.stopBeat = make(chan struct{})
		s.wg.Add(1)
		go s.beat(s.stopBeat)
	}
	return nil
}

// forget makes the next Dial look for a new link.
func (s *Links) forget(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out[l.key()] == l {
		delete(s.out, l.key())
	}
}

// remove is add's end.
func (s *Links) remove(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.links, l)
	if len(s.links) == 0 {
		close(s.stopBeat)
		s.stopBeat = nil
	}
}

// snapshot appends all links to dst.
func (s *Links) snapshot(dst []*link) []*link {
	s.mu.Lock()
	defer s.mu.Unlock()
	for l := range s.links {
		dst = append(dst, l)
	}
	return dst
}

// beat is the one timer of all links; there is none while there is no link.
func (s *Links) beat(stop chan struct{}) {
	defer s.wg.Done()
	t := time.NewTicker(s.opt.HeartbeatEvery)
	defer t.Stop()
	var all []*link
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		all = s.snapshot(all[:0])
		for _, l := range all {
			l.tick()
		}
		clear(all)
	}
}

// Drain tells all peers that this node makes and takes no new transfers. Links go on; new control connections, of
// both directions, are refused with Draining; lanes of links that are there are still taken.
func (s *Links) Drain() {
	s.mu.Lock()
	again := s.draining
	s.draining = true
	s.mu.Unlock()
	if again {
		return
	}
	for _, l := range s.snapshot(nil) {
		_ = l.Send(wire.Frame{Kind: wire.KindPeerBye, Flags: wire.FlagNoReply})
	}
}

// Close ends every link, handshake and dial and returns when their goroutines are gone and every LinkDown has
// returned, or with ctx's error, typed, when that takes longer. Frames that were queued get a short time to leave.
func (s *Links) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	for _, l := range s.snapshot(nil) {
		l.Close(fault.New(fault.Closed, "peer link", "node %q has shut down", s.opt.Node))
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fault.From("close peer links", ctx.Err())
	}
}

// offered lists the providers' names.
func (s *Links) offered() []string {
	names := make([]string, len(s.opt.Providers))
	for i, p := range s.opt.Providers {
		names[i] = p.Name()
	}
	return names
}

func (s *Links) provider(name string) rdma.Provider {
	i := slices.IndexFunc(s.opt.Providers, func(p rdma.Provider) bool { return p.Name() == name })
	if i < 0 {
		return nil
	}
	return s.opt.Providers[i]
}
