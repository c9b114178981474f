package xfer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// A provider may refuse memory that others take: of a kind that it does not reach, or more than it may pin. The region is then
// registered without it, its transfers go over the others, and their results say why. What no provider takes is refused.

// register hands the memory to every provider. Errors: that of a provider where the request or the node is at fault, or where no
// provider takes the memory.
func (r *region) register(e *Engine) error {
	const op = "register_region"
	var worst *fault.Error
	for _, p := range e.o.Providers {
		in, err := p.Register(r.mapping.Memory())
		if err == nil {
			r.inner[p.Name()] = in
			continue
		}
		fe := fault.From(op, err)
		if fe.Code == fault.InvalidArgument || fe.Code == fault.Closed {
			_ = r.deregister(e) // nothing was granted on it yet
			return r.named(fe)
		}
		if fe.Code != fault.NotSupported { // which is of the kind and needs nobody's attention
			e.o.Logger.Warn("provider does not take a region", "region", r.name, "provider", p.Name(), "error", err)
		}
		if worst == nil || worst.Code == fault.NotSupported {
			worst = fe
		}
		r.refused[p.Name()] = fe
	}
	if worst == nil || len(r.inner) > 0 {
		return nil
	}
	if worst.Code == fault.NotSupported {
		worst.Field = "kind"
	}
	return r.named(worst)
}

func (r *region) named(fe *fault.Error) error {
	out := *fe
	out.Region = r.name
	return &out
}

// because is why a provider does not have the memory.
func (r *region) because(provider string) string {
	fe := r.refused[provider]
	if fe == nil {
		return "it has not registered it"
	}
	text := fe.Detail
	if fe.Err != nil {
		text = strings.TrimPrefix(text+": "+fe.Err.Error(), ": ")
	}
	if text == "" {
		text = fe.Code.String()
	}
	return text
}

// Unregistered counts, by provider, the regions that it did not take.
func (e *Engine) Unregistered() []wire.Unregistered {
	var out []wire.Unregistered
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.o.Providers {
		row := wire.Unregistered{Provider: p.Name()}
		for _, c := range e.clients {
			for _, r := range c.regions {
				if r.refused[row.Provider] == nil {
					continue
				}
				row.Regions++
				if row.Why == "" {
					row.Why = wire.Text(r.because(row.Provider))
				}
			}
		}
		if row.Regions > 0 {
			out = append(out, row)
		}
	}
	return out
}

// unregistered is why memory of that name cannot move over a provider; nil: it can.
func (r *region) unregistered(op, name, provider string) *fault.Error {
	if r.inner[provider] != nil {
		return nil
	}
	return &fault.Error{Code: fault.NotSupported, Op: op, Field: fieldProvider, Detail: fmt.Sprintf("%q is not registered with %s: %s", name, provider, r.because(provider))}
}

// fieldProvider is the field of a refusal that is about the link's provider: over another one it may not come.
const fieldProvider = "provider"

// whyRefused is "; NAME: ..." for the provider that the transfer names and that did not take its memory, else nothing.
func (p *transfer) whyRefused() string {
	if p.region.refused[p.provider] == nil {
		return ""
	}
	return "; " + p.region.because(p.provider)
}

// exclusion is a provider that a transfer may not use, and why, for people.
type exclusion struct{ provider, why string }

// ownExclusions are the providers that do not have the own memory.
func (p *transfer) ownExclusions() (out []exclusion) {
	for _, x := range p.e.o.Providers {
		if fe := p.region.unregistered(p.op(), p.name(), x.Name()); fe != nil {
			out = append(out, exclusion{x.Name(), fmt.Sprintf("on node %s %s", p.e.o.Node, fe.Detail)})
		}
	}
	return out
}

// bindRefused takes a target's refusal. Where it says that the target's memory is not with the link's provider, the transfer, which
// has claimed nothing yet, goes on over a link without that one.
func (p *transfer) bindRefused(ls *linkState, err error) {
	fe := fault.From(p.op(), err)
	if fe.Code != fault.NotSupported || fe.Field != fieldProvider || p.provider != "" || !p.goWithout(ls, fe) {
		p.refused(fe)
	}
}

// goWithout dials again without the link's provider; false: it is known not to be usable, or there is no time.
func (p *transfer) goWithout(ls *linkState, fe *fault.Error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := time.Duration(p.deadline - p.e.o.Clock.Now())
	if p.m.Phase() != protocol.TransferBinding || left <= 0 || slices.ContainsFunc(p.without, func(x exclusion) bool { return x.provider == ls.provider }) {
		return false
	}
	p.without = append(p.without, exclusion{ls.provider, fmt.Sprintf("on node %s %s", p.ticket.Node, fe.Detail)})
	p.ls = nil
	ctx, cancel := context.WithTimeout(p.e.ctx, left)
	p.cancelDial = cancel
	p.e.wg.Go(func() { p.connect(ctx, cancel) })
	return true
}

// noLink adds to the error of a dial that had no provider left why the others were not usable.
func (p *transfer) noLink(err error) error {
	fe := fault.From(p.op(), err)
	p.mu.Lock()
	defer p.mu.Unlock()
	if fe.Code != fault.NotSupported || len(p.without) == 0 {
		return err
	}
	out := *fe
	out.Field, out.Detail = fieldProvider, out.Detail+p.whyWithout()
	return &out
}

// excluded lists the providers that the transfer may not use. The caller holds p.mu.
func (p *transfer) excluded() (names []string) {
	for _, x := range p.without {
		names = append(names, x.provider)
	}
	return names
}

// way is the provider that the transfer uses and why, "" while it has no link. The caller holds p.mu.
func (p *transfer) way() (provider, reason string) {
	if p.ls == nil {
		return "", ""
	}
	provider, reason = p.ls.link.Provider()
	return provider, wire.Text(reason + p.whyWithout())
}

// whyWithout is "; NAME is not usable: ..." for each provider that the transfer may not use. The caller holds p.mu.
func (p *transfer) whyWithout() string {
	var b strings.Builder
	for _, x := range p.without {
		b.WriteString("; " + x.provider + " is not usable: " + x.why)
	}
	return b.String()
}
