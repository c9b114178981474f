package peerlink

import (
	"time"

	"github.com/kvxfer/kvxfer/xfer"
)

// Steps of a dial, as people are told of them.
const (
	stepConnect = "connect"
	stepHello   = "hello"   // TLS, then HELLO, and its answer
	stepSession = "session" // the provider's way to the peer
)

// dialing is how far a flight is. It is under Links.mu.
type dialing struct {
	addr, step string
	since      time.Time
	before     string
}

// at notes the step that a flight begins.
func (s *Links) at(f *flight, addr, step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.now.addr, f.now.step, f.now.since = addr, step, time.Now()
}

// tried notes why an address or a provider did not work.
func (s *Links) tried(f *flight, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.now.before = err.Error()
}

var _ xfer.DialWatcher = (*Links)(nil)

// Dialing tells of the flight under way to a peer; false: there is none.
func (s *Links) Dialing(ref xfer.PeerRef) (xfer.DialState, bool) {
	def(&ref.Tenant, s.opt.Tenant)
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.flights[keyOf(&ref)]
	if f == nil || f.now.step == "" {
		return xfer.DialState{}, false
	}
	return xfer.DialState{Addr: f.now.addr, Step: f.now.step, For: time.Since(f.now.since), Before: f.now.before}, true
}
