package node

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/rdma"
)

// ProviderCheck is what became of moving bytes through a provider between two halves inside this process.
type ProviderCheck struct {
	Provider string
	Bytes    uint64        // of each direction
	Write    time.Duration // of the WRITE, from Post to its completion
	Read     time.Duration
	Err      error // nil: both arrived as they were sent
	Optional bool  // a daemon runs without it where the host cannot use it, unless it is named
}

// CheckProviders moves bytes (1 or more) through each provider of a configuration, by its own code and the kernel's, without a
// daemon. It binds a port of 127.0.0.1 that the kernel chooses and makes sockets in a directory for temporary files; nothing is
// left of either.
func CheckProviders(ctx context.Context, cfg *config.Config, bytes uint64) []ProviderCheck {
	out := make([]ProviderCheck, len(cfg.Providers))
	for i, name := range cfg.Providers {
		out[i] = ProviderCheck{Provider: name, Bytes: bytes, Optional: !required[name]}
		out[i].Err = out[i].run(ctx, &cfg.RDMA)
	}
	return out
}

func (c *ProviderCheck) run(ctx context.Context, o *config.RDMA) (err error) {
	p, err := OpenPair(ctx, c.Provider, o, o, c.Bytes)
	if err != nil {
		return err
	}
	defer p.Close()
	if c.Write, err = p.move(ctx, rdma.OpWrite); err != nil {
		return err
	}
	c.Read, err = p.move(ctx, rdma.OpRead)
	return err
}
