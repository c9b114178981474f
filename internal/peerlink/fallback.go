package peerlink

import (
	"slices"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// A provider that both nodes have may still not reach from one to the other. Only trying tells, so what was learned is kept:
// per peer and epoch, since a peer that was restarted may have moved, and for RetryProvider, since what was in the way may go.

// shunned is why a provider is not offered to a peer for now.
type shunned struct {
	provider string
	why      string
	until    time.Time
}

// usable lists the providers to offer to a peer, the best first, and why the others are not. A provider that ref names is
// tried whatever was learned: who names it wants to know.
func (s *Links) usable(ref xfer.PeerRef) (offer []string, without []shunned) {
	if ref.Provider != "" {
		return []string{ref.Provider}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	allowed := s.allowed(&ref)
	for _, name := range allowed {
		if x, ok := s.shuns[way{ref.Node, ref.Epoch, name}]; ok && now.Before(x.until) {
			without = append(without, x)
		} else {
			offer = append(offer, name)
		}
	}
	if len(offer) == 0 { // of one that the reference excludes the last word was that it reaches the peer
		return allowed, nil
	}
	return offer, without
}

// allowed lists the providers that ref does not exclude, the best first.
func (s *Links) allowed(ref *xfer.PeerRef) []string {
	return slices.DeleteFunc(s.offered(), func(p string) bool { return slices.Contains(ref.Without, p) })
}

// shun notes that a provider could not reach a peer.
func (s *Links) shun(ref xfer.PeerRef, provider string, err error) {
	x := shunned{provider: provider, why: inWords(err), until: time.Now().Add(s.opt.RetryProvider)}
	s.mu.Lock()
	for k, old := range s.shuns { // of peers that are never dialed again
		if time.Now().After(old.until) {
			delete(s.shuns, k)
		}
	}
	s.shuns[way{ref.Node, ref.Epoch, provider}] = x
	s.mu.Unlock()
	s.opt.Logger.Info("provider does not reach the peer", "peer", ref.Node, "epoch", ref.Epoch, "provider", provider, "error", err,
		"again_after", s.opt.RetryProvider)
}

// fallback is the reason for a provider that is not the first choice.
func fallback(provider string, without []shunned) string {
	var b strings.Builder
	b.WriteString(provider)
	for i, x := range without {
		b.WriteString([]string{": ", "; "}[min(i, 1)] + x.provider + " is not usable: " + x.why)
	}
	return wire.Text(b.String())
}

// inWords is an error without its code: what was done, to what, and why not.
func inWords(err error) string {
	e := fault.From("connect", err)
	text := e.Op
	if e.Detail != "" {
		text += " " + e.Detail
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}
