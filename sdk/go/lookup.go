package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// LookupRequest asks who holds the longest beginning of a list of keys.
type LookupRequest struct {
	Keys [][]byte // in order, 1..65536 of equal length, 1..255 bytes; see [ChainKeys]
	// Like is the cache that the blocks would be read into; only caches that agree with it are holders. Without it Model,
	// Revision, Compat and Layout say so.
	Like                    *Cache
	Model, Revision, Compat string
	Layout                  Layout
	LocalOnly               bool // ask no other node
}

// Holder is a cache that holds the first blocks of a list of keys.
type Holder struct {
	Node   string // its node
	Epoch  string // the incarnation of that node's daemon, 32 hex digits
	Addr   string // the node's peer port, host:port
	Cache  string // the cache's name
	Blocks int    // how many keys of the list's beginning it has
}

// LookupResult is who holds the beginning of a list of keys.
type LookupResult struct {
	Prefix  int      // the most keys, from the first on, that one holder has; 0: nobody has the first
	Holders []Holder // the holders of at least one block, the longest prefix first
	Unasked []string // nodes that did not answer in time; what they hold is unknown
}

// Lookup asks every node that is known to have a cache of that model. The answer is a hint: blocks may be evicted before they
// are read. Read them by [Cache.ReadFrom], with the first of the keys.
//
// ctx bounds the call; the nodes get seven eighths of its time, and those that have not answered then are listed as unasked.
// Without a deadline they get a second. Errors: InvalidArgument names the field, and the index of a wrong key;
// DeadlineExceeded, the own daemon does not answer.
func (c *Client) Lookup(ctx context.Context, r LookupRequest) (LookupResult, error) {
	const op = "lookup"
	var none LookupResult
	data, keyBytes, err := packKeys(op, r.Keys, wire.MaxLookupKeys)
	if err != nil {
		return none, err
	}
	k := kind{model: r.Model, revision: r.Revision, compat: r.Compat}
	if r.Like != nil {
		if k != (kind{}) || r.Layout != (Layout{}) {
			return none, invalid(op, "like", "with model, revision, compat or layout; allowed alone, or they without it")
		}
		k = r.Like.kind()
	} else {
		for _, err := range [...]error{checkText(op, "model", k.model, 1), checkText(op, "revision", k.revision, 0), checkText(op, "compat", k.compat, 0)} {
			if err != nil {
				return none, err
			}
		}
		if k.layout, err = r.Layout.wire(); err != nil {
			return none, err
		}
	}
	nodes := lookupTimeout
	if _, ok := ctx.Deadline(); ok {
		left := timeLeft(ctx, 0)
		nodes = max(left-min(left/8, grace), time.Millisecond)
	}
	ctx, cancel := bounded(ctx, lookupTimeout+grace)
	defer cancel()
	var info wire.LookupInfo
	if err := c.ask(ctx, request{op: op, kind: wire.KindLookup, data: data, onOK: func(f *wire.Frame) error { return f.Decode(&info) },
		body: &wire.Lookup{Model: k.model, Revision: k.revision, Compat: k.compat, Layout: k.layout, KeyBytes: keyBytes, LocalOnly: r.LocalOnly,
			TimeoutMillis: millis(nodes)}}); err != nil {
		return none, err
	}
	out := LookupResult{Unasked: info.Unasked}
	for _, h := range info.Holders {
		out.Prefix = max(out.Prefix, int(h.Blocks))
		out.Holders = append(out.Holders, Holder{Node: h.Node, Epoch: h.Epoch, Addr: h.Addr, Cache: h.Cache, Blocks: int(h.Blocks)})
	}
	return out, nil
}
