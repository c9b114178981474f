package xfer

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

const (
	// maxHoldersNamed bounds the caches that a node names in an answer; those with the longest prefixes are named.
	maxHoldersNamed = 1024
	// findersAtOnce bounds the nodes that one lookup asks at a time.
	findersAtOnce = 64
	// maxAskBytes bounds the array of a request to a peer: see docs/protocol.md, Peer protocol.
	maxAskBytes = wire.MaxNotification
)

// Lookup finds who holds the longest prefix of a packed list of keys, r.KeyBytes each: own caches of the client's tenant,
// and those of every node that the directory lists with a cache of the model. A node that does not answer within
// r.TimeoutMillis is named, and what it holds is unknown.
func (e *Engine) Lookup(ctx context.Context, id ClientID, r wire.Lookup, keys []byte) (wire.LookupInfo, error) {
	const op = "lookup"
	e.mu.Lock()
	c, err := e.lookup(op, id)
	e.mu.Unlock()
	if err != nil {
		return wire.LookupInfo{}, err
	}
	if err := r.Validate(); err != nil {
		return wire.LookupInfo{}, err
	}
	if err := wire.CheckKeys(op, keys, r.KeyBytes); err != nil {
		return wire.LookupInfo{}, err
	}
	tenant := c.info.Tenant
	find := wire.Find{Model: r.Model, Revision: r.Revision, Compat: r.Compat, Layout: r.Layout, KeyBytes: r.KeyBytes}
	info := wire.LookupInfo{Holders: e.findHere(tenant, &find, keys)}
	if !r.LocalOnly && e.o.Finder != nil {
		ctx, cancel := context.WithTimeout(ctx, time.Duration(r.TimeoutMillis)*time.Millisecond)
		defer cancel()
		var mu sync.Mutex
		var wg sync.WaitGroup
		room := make(chan struct{}, findersAtOnce)
		for _, ref := range e.o.Finder.Holders(tenant, r.Model) {
			if ref.Node == e.o.Node {
				continue
			}
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				found, err := e.findAt(ctx, ref, &find, keys)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					info.Unasked = append(info.Unasked, ref.Node)
					e.o.Logger.Debug("lookup not answered", "peer", ref.Node, "error", err)
				}
				info.Holders = append(info.Holders, found...)
			})
		}
		wg.Wait()
	}
	slices.Sort(info.Unasked)
	slices.SortFunc(info.Holders, func(a, b wire.Holder) int {
		return cmp.Or(cmp.Compare(b.Blocks, a.Blocks), cmp.Compare(a.Node, b.Node), cmp.Compare(a.Cache, b.Cache))
	})
	if len(info.Holders) > maxHoldersNamed {
		info.Holders = info.Holders[:maxHoldersNamed]
	}
	return info, nil
}

// findHere answers from the own caches of a tenant. A cache that differs in what must agree holds nothing of use.
func (e *Engine) findHere(tenant string, f *wire.Find, keys []byte) []wire.Holder {
	e.mu.Lock()
	caches := make([]*cache, 0, len(e.caches))
	for _, ca := range e.caches {
		if ca.client.info.Tenant == tenant && ca.spec.Model == f.Model {
			caches = append(caches, ca)
		}
	}
	e.mu.Unlock()
	out := []wire.Holder{}
	var blocks []uint32
	for _, ca := range caches {
		if ca.fits(f) != nil {
			continue
		}
		if blocks = ca.store.Prefix(blocks[:0], keys, int(f.KeyBytes)); len(blocks) > 0 {
			out = append(out, wire.Holder{Node: e.o.Node, Epoch: e.o.Epoch, Addr: e.o.Addr, Cache: ca.name, Blocks: uint32(len(blocks))})
		}
	}
	return out
}

// fits says whether the cache's blocks could be read into what a request describes; LayoutMismatch names the field.
func (ca *cache) fits(f *wire.Find) error {
	return layout.Compare(ca.spec.Layout, f.Layout, ca.identity(), layout.Identity{Model: f.Model, Revision: f.Revision, Compat: f.Compat})
}

// findAt asks one node. A request to a peer carries a part of the keys; the next part is asked while a cache has all
// of the former ones, so that a node that holds nothing is asked once.
func (e *Engine) findAt(ctx context.Context, ref PeerRef, f *wire.Find, keys []byte) ([]wire.Holder, error) {
	ls, err := e.reach(ctx, ref)
	if err != nil {
		return nil, err
	}
	size := int(f.KeyBytes)
	most := maxAskBytes / size * size
	var out []wire.Holder
	for begun := 0; len(keys) > 0; begun += most / size {
		part := keys[:min(len(keys), most)]
		keys = keys[len(part):]
		answer, err := ls.call(ctx, wire.KindFind, f, part)
		if err != nil && begun > 0 {
			return out, nil // what it told before is true all the same
		}
		if err != nil {
			return nil, err
		}
		found, err := readHolders(ls, &answer, len(part)/size)
		if err != nil {
			return nil, err
		}
		more := false
		for _, h := range found {
			h.Node, h.Epoch, h.Addr = ref.Node, ref.Epoch, ref.Addr
			more = more || int(h.Blocks) == len(part)/size
			if begun == 0 {
				out = append(out, h)
				continue
			}
			for i := range out {
				if out[i].Cache == h.Cache && int(out[i].Blocks) == begun {
					out[i].Blocks += h.Blocks
				}
			}
		}
		if !more {
			break
		}
	}
	return out, nil
}

// readHolders checks what a peer claims; most is how many keys it was asked for.
func readHolders(ls *linkState, f *wire.Frame, most int) ([]wire.Holder, error) {
	var info wire.FindInfo
	if err := f.Decode(&info); err != nil {
		return nil, err
	}
	if len(info.Holders) > maxHoldersNamed {
		return nil, ls.wrong("find", "%d holders, allowed 0..%d", len(info.Holders), maxHoldersNamed)
	}
	for _, h := range info.Holders {
		if h.Blocks < 1 || int(h.Blocks) > most {
			return nil, ls.wrong("find", "a holder of %d blocks, allowed 1..%d", h.Blocks, most)
		}
		if err := wire.CheckName("find", "cache", h.Cache); err != nil {
			return nil, err
		}
	}
	return info.Holders, nil
}

func (ls *linkState) wrong(op, format string, args ...any) error {
	fe := fault.New(fault.ProtocolViolation, op, format, args...)
	fe.Peer = ls.link.Peer().Node
	return fe
}

// reach finds or makes the link to a peer.
func (e *Engine) reach(ctx context.Context, ref PeerRef) (*linkState, error) {
	link, err := e.o.Dialer.Dial(ctx, ref)
	if err != nil {
		return nil, err
	}
	if ls := e.state(link); ls != nil {
		return ls, nil
	}
	return nil, &fault.Error{Code: fault.PeerLost, Op: "link", Peer: ref.Node}
}

// onFind answers a peer's FIND.
func (ls *linkState) onFind(f wire.Frame) error {
	var q wire.Find
	if err := f.Decode(&q); err != nil {
		return err
	}
	err := q.Validate()
	if err == nil {
		err = wire.CheckKeys("find", f.Array, q.KeyBytes)
	}
	if err == nil && ls.e.Draining() {
		err = fault.New(fault.Draining, "find", "node %s is draining", ls.e.o.Node)
	}
	if err != nil {
		ls.refuse(f.Request, err)
		return nil
	}
	found := ls.e.findHere(ls.link.Peer().Tenant, &q, f.Array)
	if len(found) > maxHoldersNamed {
		slices.SortFunc(found, func(a, b wire.Holder) int { return cmp.Compare(b.Blocks, a.Blocks) })
		found = found[:maxHoldersNamed]
	}
	ls.answer(f.Request, wire.FindInfo{Holders: found}, nil)
	return nil
}
