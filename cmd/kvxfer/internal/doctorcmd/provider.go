package doctorcmd

import (
	"context"
	"fmt"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/doctor"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/node"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// providers checks those that are configured, all where nothing can be read of it. st is what the daemon says of itself, empty where
// there is none.
func providers(ctx context.Context, cfg *config.Config, st *wire.Status) (out []doctor.Check) {
	if cfg == nil {
		cfg = &config.Config{Providers: config.Providers}
	}
	ctx, cancel := context.WithTimeout(ctx, daemon.DefaultTimeout)
	defer cancel()
	for _, p := range node.CheckProviders(ctx, cfg, ProbeBytes) {
		c := judgeProvider(&p, cfg.ProvidersNamed, st)
		c.ID = "provider-" + p.Provider
		out = append(out, c)
	}
	return out
}

// judgeProvider says what a check in this process, and the daemon, tell of a provider. named: the configuration wants it.
func judgeProvider(p *node.ProviderCheck, named bool, st *wire.Status) doctor.Check {
	const remedy = "look at the checks above for what is missing; without this provider: --providers"
	switch {
	case p.Err != nil && p.Optional && !named && fault.CodeOf(p.Err) == fault.NotSupported:
		return doctor.Check{Verdict: doctor.OK, Finding: "left out on this host: " + p.Err.Error()}
	case p.Err != nil && p.Optional && !named:
		return doctor.Check{Verdict: doctor.Warn, Finding: "left out on this host: " + p.Err.Error(), Remedy: remedy}
	case p.Err != nil:
		return doctor.Check{Verdict: doctor.Fail, Finding: p.Err.Error(), Remedy: remedy}
	}
	c := doctor.Check{Verdict: doctor.OK, Finding: fmt.Sprintf("%s written in %s, read in %s, inside this process", command.Bytes(p.Bytes), round(p.Write), round(p.Read))}
	for _, u := range st.Unregistered {
		if u.Provider == p.Provider {
			c = doctor.Check{Verdict: doctor.Warn, Finding: fmt.Sprintf("%s; the daemon has %d regions of clients without it: %s", c.Finding, u.Regions, u.Why),
				Remedy: "transfers of these regions use other providers; remove the reason and register the memory again (restart the client)"}
		}
	}
	if w := why(st, p.Provider); w != "" {
		c = doctor.Check{Verdict: doctor.Warn, Finding: fmt.Sprintf("%s; the daemon runs without it: %s", c.Finding, w),
			Remedy: "restart the daemon where it can use the devices: as this user, in this network namespace, with these limits"}
	}
	return c
}
