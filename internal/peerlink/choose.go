package peerlink

import (
	"slices"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// side is what one node brings to the choice of a provider.
type side struct {
	names  []string       // that it can use, best first
	absent []wire.Absence // that it would have
}

// without names the provider and, in brackets, why the side does not have it, as far as it said so.
func (s *side) without(name string) string {
	i := slices.IndexFunc(s.absent, func(a wire.Absence) bool { return a.Provider == name })
	if i < 0 || s.absent[i].Why == "" {
		return name
	}
	return name + " (" + s.absent[i].Why + ")"
}

// choose takes the first of the dialer's offer that this side has too, and says why. The reason names what one side would
// rather have taken and the other lacks; what both lack nobody would have taken.
func choose(dialer, own side) (name, reason string, err error) {
	var common, missing, lacking []string
	for _, p := range dialer.names {
		switch {
		case slices.Contains(own.names, p):
			common = append(common, p)
		case len(common) == 0:
			missing = append(missing, own.without(p))
		}
	}
	switch {
	case len(common) == 0:
		return "", "", fault.New(fault.NotSupported, "hello", "no provider in common: the dialer has %q, this node %q", dialer.names, own.names)
	case len(common) == 1:
		reason = common[0] + ": the only provider both nodes have"
	default:
		reason = common[0] + ": the dialer's first choice of " + strings.Join(common, ", ")
	}
	if len(missing) > 0 {
		reason += "; the accepting node has no " + strings.Join(missing, ", ")
	}
	for _, p := range own.names[:max(0, slices.Index(own.names, common[0]))] {
		if slices.ContainsFunc(dialer.absent, func(a wire.Absence) bool { return a.Provider == p }) {
			lacking = append(lacking, dialer.without(p))
		}
	}
	if len(lacking) > 0 {
		reason += "; the dialing node has no " + strings.Join(lacking, ", ")
	}
	return common[0], wire.Text(reason), nil
}

// whyAbsent is "; NAME: reason" for a provider that this node would have, else nothing.
func (s *Links) whyAbsent(name string) string {
	for _, a := range s.opt.Absent {
		if a.Provider == name {
			return "; " + name + ": " + a.Why
		}
	}
	return ""
}

// replaceable says of a provider's error that the next provider may do what this one cannot: it has nothing to do with the peer or
// with what it is asked for.
func replaceable(err error) bool {
	switch fault.CodeOf(err) {
	case fault.PeerUnreachable, fault.NotSupported, fault.ResourceExhausted:
		return true
	}
	return false
}

// half makes the accepting side's half of a session, over the dialer's first choice that works here, and puts both into l. It gives
// the session's parameters.
func (s *Links) half(l *link, h *wire.Hello) (params []byte, err error) {
	dialer, own := side{slices.Clone(h.Providers), h.Absent}, side{s.offered(), s.opt.Absent}
	var without []shunned
	for {
		name, reason, none := choose(dialer, own)
		if none != nil && err == nil {
			err = none
		}
		if none != nil { // where some were tried, the last one's error says more
			return nil, err
		}
		if len(without) > 0 {
			reason = fallback(name, without)
		}
		if l.target, params, err = s.provider(name).Accept(l.session); err == nil {
			l.provider, l.reason = name, reason
			return params, nil
		}
		if !replaceable(err) {
			return nil, err
		}
		s.opt.Logger.Warn("provider takes no session", "peer", h.Node, "epoch", h.Epoch, "provider", name, "error", err)
		without = append(without, shunned{provider: name, why: inWords(err)})
		dialer.names = slices.DeleteFunc(dialer.names, func(p string) bool { return p == name })
	}
}
