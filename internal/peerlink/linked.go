package peerlink

import "github.com/kvxfer/kvxfer/xfer"

var _ xfer.LinkFinder = (*Links)(nil)

// Linked is the link that Dial would return at once; false: there is none, or the peer or this node takes nothing new, and Dial
// says why. It never waits.
func (s *Links) Linked(ref xfer.PeerRef) (xfer.Link, bool) {
	def(&ref.Tenant, s.opt.Tenant)
	key := keyOf(&ref)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refusal() != nil {
		return nil, false
	}
	l := s.ready(key)
	if l == nil || l.bye.Load() {
		return nil, false
	}
	return l, true
}
