package xfer

import (
	"cmp"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// look is one answer to INSPECT being made.
type look struct {
	now    rdma.Instant
	detail bool
	id     string // the beginning of an id that is looked for
	found  bool   // a holder's transfer has it
	// left is how long the answer may still wait, in all, for locks that somebody holds: what hangs under its lock must
	// not hang who wants to know why.
	left time.Duration
}

const (
	lockPatience = 100 * time.Millisecond
	lockPause    = 200 * time.Microsecond
	// detailRows bounds an answer with layers and holders, which are long.
	detailRows = 64
	// scanMost bounds the leases, transfers or blocks that one answer looks at.
	scanMost = 1 << 16
	// chunk is how many blocks are read under their cache's lock at a time.
	chunk = 4096
)

// lock takes mu if that is to be had soon.
func (k *look) lock(mu *sync.Mutex) bool {
	for !mu.TryLock() {
		if k.left <= 0 {
			return false
		}
		time.Sleep(lockPause)
		k.left -= lockPause
	}
	return true
}

// busy says that a lock was not to be had.
func busy() *wire.Waiting {
	return &wire.Waiting{For: wire.WaitSettlement, Text: "this node, which is at work on it and lets nobody look: a slow disk or system call, or much at a time"}
}

func (k *look) waits(what, text string, since rdma.Instant) *wire.Waiting {
	return &wire.Waiting{For: what, Text: text, Ms: ms(k.now - since)}
}

// Inspect answers INSPECT for what the engine holds: blocks, leases and transfers of a tenant; "": of all. The array is
// a list of rows, each of one moment; rows of one answer may be of different ones.
//
// Errors: InvalidArgument (the query); NotFound (the cache).
func (e *Engine) Inspect(tenant string, q wire.Inspect) (wire.InspectInfo, []byte, error) {
	k := &look{now: e.o.Clock.Now(), detail: q.Detail, id: q.ID, left: lockPatience}
	switch q.What {
	case wire.InspectBlocks:
		return e.inspectBlocks(tenant, &q)
	case wire.InspectLeases:
		return e.inspectLeases(k, tenant, &q)
	case wire.InspectTransfers:
		return e.inspectTransfers(k, tenant, &q)
	}
	return wire.InspectInfo{}, nil, fault.New(fault.NotSupported, "inspect", "%s is not the engine's", q.What)
}

// rowLimit is how many rows the answer may have.
func rowLimit(q *wire.Inspect) int {
	if q.Detail {
		return min(q.Rows(), detailRows)
	}
	return q.Rows()
}

// numbered is something that the engine numbers, to be listed in that order.
type numbered[T any] struct {
	id uint64
	v  T
}

func sorted[T any](all []numbered[T]) []numbered[T] {
	slices.SortFunc(all, func(a, b numbered[T]) int { return cmp.Compare(a.id, b.id) })
	return all[:min(len(all), scanMost)]
}

// cursor reads what stands behind a cursor's letter; "" is the beginning.
func cursor(s string, letter byte) (n uint64, err error) {
	if s == "" {
		return 0, nil
	}
	if s[0] == letter {
		if n, err = strconv.ParseUint(s[1:], 10, 64); err == nil {
			return n, nil
		}
	}
	return 0, fault.Invalid("inspect", "after", "%.40q, allowed is the next of an answer", s)
}

func cursorAt(letter byte, n uint64) string { return string(letter) + strconv.FormatUint(n, 10) }

// ofMemory says whether a name of memory, in a tenant, is what a filter wants.
func ofMemory(want, tenant, name string) bool {
	return want == "" || want == name || want == tenant+"/"+name
}

func (e *Engine) inspectBlocks(tenant string, q *wire.Inspect) (info wire.InspectInfo, array []byte, err error) {
	ca, err := e.namedCache(tenant, q.Cache)
	if err != nil {
		return info, nil, err
	}
	from, err := cursor(q.After, 'b')
	if err != nil || from > math.MaxUint32 {
		return info, nil, fault.Invalid("inspect", "after", "%.40q, allowed is the next of an answer", q.After)
	}
	if from == 0 {
		info.Counts = ca.counts()
	}
	var rows []wire.BlockRow
	limit, seen := rowLimit(q), 0
	next := uint32(from)
	for full := false; !full && next < ca.geometry.NumBlocks; {
		at := next
		ca.mu.Lock()
		ca.store.Range(next, func(r blockdb.Record) bool {
			if len(rows) == limit || seen == scanMost {
				full = true
				return false
			}
			if seen++; ca.wanted(q.State, &r) {
				rows = append(rows, ca.blockRow(&r))
			}
			next = r.Block + 1
			return next-at < chunk
		})
		ca.mu.Unlock()
		if next == at { // the cache has ended meanwhile
			break
		}
	}
	if next < ca.geometry.NumBlocks && (len(rows) == limit || seen == scanMost) {
		info.Next = cursorAt('b', uint64(next))
	}
	array, err = wire.PackRows(rows)
	return info, array, err
}

// wanted says whether a block is listed: without a state those that are not FREE or are HELD. The caller holds ca.mu.
func (ca *cache) wanted(state string, r *blockdb.Record) bool {
	held := ca.held[r.Block] > 0
	switch state {
	case "":
		return held || r.State != blockdb.Free
	case "HELD":
		return held
	}
	return r.State.String() == state
}

func (ca *cache) blockRow(r *blockdb.Record) wire.BlockRow {
	row := wire.BlockRow{Block: r.Block, State: r.State.String(), Generation: r.Generation, Holds: ca.held[r.Block], Key: hex.EncodeToString(r.Key)}
	if r.Lease != (blockdb.LeaseID{}) {
		row.Lease = hex16(r.Lease)
	}
	return row
}

// counts counts a cache's blocks, some thousand at a time: of a large cache they are not all of one moment.
func (ca *cache) counts() *wire.BlockCounts {
	n := &wire.BlockCounts{Total: ca.geometry.NumBlocks}
	for next := uint32(0); next < n.Total; {
		at := next
		ca.mu.Lock()
		ca.store.Range(next, func(r blockdb.Record) bool {
			switch r.State {
			case blockdb.Leased:
				n.Leased++
			case blockdb.Committed:
				n.Committed++
			case blockdb.Revoking:
				n.Revoking++
			default:
				n.Free++
			}
			if ca.held[r.Block] > 0 {
				n.Held++
			}
			next = r.Block + 1
			return next-at < chunk
		})
		ca.mu.Unlock()
		if next == at {
			break
		}
	}
	return n
}

// namedCache finds an own cache by its name, NAME or TENANT/NAME, in a tenant; "": in all.
func (e *Engine) namedCache(tenant, name string) (*cache, error) {
	const op = "inspect"
	if t, bare, ok := strings.Cut(name, "/"); ok {
		if tenant != "" && t != tenant {
			return nil, fault.New(fault.NotFound, op, "no cache %q of tenant %q on node %s", bare, tenant, e.o.Node)
		}
		tenant, name = t, bare
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var found *cache
	for _, ca := range e.caches {
		if ca.name != name || tenant != "" && ca.client.info.Tenant != tenant {
			continue
		}
		if found != nil {
			return nil, fault.Invalid(op, "cache", "%q is a cache of several tenants, allowed is TENANT/NAME", name)
		}
		found = ca
	}
	if found == nil {
		return nil, fault.New(fault.NotFound, op, "no cache %q on node %s; `kvxfer caches` lists those of all nodes", name, e.o.Node)
	}
	return found, nil
}

func gaps(all []protocol.Gap) []wire.LayerGap {
	out := make([]wire.LayerGap, len(all))
	for i, g := range all {
		out[i] = wire.LayerGap(g)
	}
	return out
}
