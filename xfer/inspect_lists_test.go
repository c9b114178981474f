package xfer_test

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// What INSPECT lists, for whom, in which pages, and without what.

// TestPagesShowEverythingOnce: leases, ended transfers and blocks by pages of any size.
func TestPagesShowEverythingOnce(t *testing.T) {
	rng := testseed.New(t)
	n, _ := looking(t)
	w := newWorker(t, n.node, "c", small, 64)
	other := newWorkerOf(t, n.node, "other", "c", small, 8)
	other.lease(time.Hour, 1)
	var want []string
	states := map[uint32]string{}
	for b := uint32(0); b < 64; b++ {
		switch rng.IntN(3) {
		case 0:
			want = append(want, w.lease(time.Hour, b).LeaseID)
			states[b] = "LEASED"
		case 1:
			_, err := n.engine.Publish(w.id, wire.Publish{Cache: w.cache, KeyBytes: 4}, []uint32{b}, [][]byte{{byte(b), 1, 2, 3}})
			require.NoError(t, err)
			states[b] = "COMMITTED"
		}
	}
	l := n.source(8)
	for range 3 {
		id := w.push(ticket(1), time.Hour, free(states))
		l.take(wire.KindBind)
		n.engine.CancelTransfer(w.id, id)
		w.transferEnd(id)
	}
	n.until(func() bool { return n.engine.Stats().Transfers == 0 })
	for _, limit := range []uint32{1, 2, 7, 64, 1000} {
		var leases []string
		for q := (wire.Inspect{What: wire.InspectLeases, Limit: limit}); ; {
			rows, info := inspect[wire.LeaseRow](t, n.node, q)
			assert.LessOrEqual(t, len(rows), int(limit))
			for _, r := range rows {
				leases = append(leases, r.LeaseID)
			}
			if q.After = info.Next; q.After == "" {
				break
			}
		}
		assert.Equal(t, want, leases)
		for _, state := range []string{"", "COMMITTED", "FREE"} {
			got := map[uint32]string{}
			for q := (wire.Inspect{What: wire.InspectBlocks, Cache: "c", State: state, Limit: limit}); ; {
				rows, info := inspect[wire.BlockRow](t, n.node, q)
				assert.Equal(t, q.After == "", info.Counts != nil)
				for _, r := range rows {
					assert.NotContains(t, got, r.Block)
					got[r.Block] = r.State
					if r.State == "COMMITTED" {
						assert.Equal(t, hex.EncodeToString([]byte{byte(r.Block), 1, 2, 3}), r.Key)
					}
				}
				if q.After = info.Next; q.After == "" {
					break
				}
			}
			for b := uint32(0); b < 64; b++ {
				is, listed := states[b], got[b]
				if is == "" {
					is = "FREE"
				}
				if state == "" && is == "FREE" || state != "" && state != is {
					is = ""
				}
				assert.Equal(t, is, listed, "block %d, asked for %q", b, state)
			}
		}
		var ended []string
		for q := (wire.Inspect{What: wire.InspectTransfers, Ended: true, Limit: limit}); ; {
			rows, info := inspect[wire.TransferRow](t, n.node, q)
			for _, r := range rows {
				ended = append(ended, r.TransferID)
			}
			if q.After = info.Next; q.After == "" {
				break
			}
		}
		assert.Len(t, ended, 3)
	}
	_, array, err := n.engine.Inspect("", wire.Inspect{What: wire.InspectLeases})
	require.NoError(t, err)
	all, err := wire.Rows[wire.LeaseRow](array)
	require.NoError(t, err)
	assert.Len(t, all, len(want)+1)
}

func free(states map[uint32]string) uint32 {
	for b := uint32(0); ; b++ {
		if states[b] == "" {
			return b
		}
	}
}

// TestInspectRefusals: caches that are not there or not the tenant's, and cursors that are none.
func TestInspectRefusals(t *testing.T) {
	n, _ := looking(t)
	newWorker(t, n.node, "c", small, 8)
	newWorkerOf(t, n.node, "other", "c", small, 8)
	newWorkerOf(t, n.node, "other", "d", small, 8)
	for name, c := range map[string]struct {
		tenant string
		q      wire.Inspect
		err    error
	}{
		"no cache":          {"default", wire.Inspect{What: wire.InspectBlocks, Cache: "x"}, fault.ErrNotFound},
		"other's":           {"default", wire.Inspect{What: wire.InspectBlocks, Cache: "d"}, fault.ErrNotFound},
		"other's by tenant": {"default", wire.Inspect{What: wire.InspectBlocks, Cache: "other/d"}, fault.ErrNotFound},
		"own by tenant":     {"default", wire.Inspect{What: wire.InspectBlocks, Cache: "default/c"}, nil},
		"of all":            {"", wire.Inspect{What: wire.InspectBlocks, Cache: "d"}, nil},
		"of all, by tenant": {"", wire.Inspect{What: wire.InspectBlocks, Cache: "other/c"}, nil},
		"of which":          {"", wire.Inspect{What: wire.InspectBlocks, Cache: "c"}, fault.ErrInvalidArgument},
		"cursor":            {"default", wire.Inspect{What: wire.InspectBlocks, Cache: "c", After: "l1"}, fault.ErrInvalidArgument},
		"large cursor":      {"default", wire.Inspect{What: wire.InspectBlocks, Cache: "c", After: "b99999999999"}, fault.ErrInvalidArgument},
		"lease cursor":      {"default", wire.Inspect{What: wire.InspectLeases, After: "l-1"}, fault.ErrInvalidArgument},
		"transfer cursor":   {"default", wire.Inspect{What: wire.InspectTransfers, After: "b1"}, fault.ErrInvalidArgument},
		"not the engine's":  {"default", wire.Inspect{What: wire.InspectNodes}, fault.ErrNotSupported},
	} {
		_, _, err := n.engine.Inspect(c.tenant, c.q)
		if c.err == nil {
			assert.NoError(t, err, name)
		} else {
			assert.ErrorIs(t, err, c.err, name)
		}
	}
}

// TestRowsHoldNoSecrets looks for tickets' secrets and instances' keys in all that can be listed.
func TestRowsHoldNoSecrets(t *testing.T) {
	net := newNetwork(t, "d0", "x")
	d := newInstance(t, net, "dec", 8, "d0")
	asker := newClient(t, net.nodes["x"], "asker")
	tickets := []string{asker.mustLease("dec", 1).Ticket, d[0].lease(time.Hour, 2).Ticket, d[0].offer(2, time.Hour, 3).Ticket}
	src := newWorker(t, net.nodes["x"], "src", d[0].spec.Layout, 8)
	src.push(tickets[1], time.Hour, 1)
	var text strings.Builder
	for _, nd := range net.nodes {
		for _, what := range []string{wire.InspectLeases, wire.InspectTransfers} {
			info, array, err := nd.engine.Inspect("", wire.Inspect{What: what, Ended: true, Detail: true})
			require.NoError(t, err)
			raw, err := json.Marshal(info)
			require.NoError(t, err)
			fmt.Fprintf(&text, "%s%s", raw, array)
		}
	}
	all := text.String()
	require.Contains(t, all, `"instance"`)
	secrets := [][]byte{engineKey}
	for _, s := range tickets {
		p, err := wire.ParseTicket(s)
		require.NoError(t, err)
		for _, g := range p.Grants {
			secrets = append(secrets, g.Secret)
		}
		assert.NotContains(t, all, s)
	}
	for _, s := range secrets {
		for _, form := range []string{hex.EncodeToString(s), base64.StdEncoding.EncodeToString(s), string(s)} {
			assert.NotContains(t, all, form)
		}
	}
}

// TestStopGrantingLetsRunningOnesEnd: a drain that ends nothing but what nobody has bound.
func TestStopGrantingLetsRunningOnesEnd(t *testing.T) {
	n := newFakeNode(t, nil)
	w := newWorker(t, n.node, "c", small, 8)
	l := n.target()
	bound, unbound := w.lease(time.Hour, 1), w.lease(time.Hour, 2)
	l.receive(wire.KindBind, 1, bind(t, w, bound.Ticket), nil)
	l.take(wire.KindOK)
	n.engine.StopGranting()
	n.engine.StopGranting()
	assert.Equal(t, "Draining", w.leaseEnd(unbound.Lease).Error.Name)
	_, err := n.engine.Lease(t.Context(), w.id, wire.LeaseRequest{Cache: w.cache, Mode: "write", TTLMillis: 1000}, []uint32{3})
	assert.ErrorIs(t, err, fault.ErrDraining)
	now, cancel := context.WithCancel(t.Context())
	cancel()
	assert.False(t, n.engine.Idle(now))
	for layer := range small.Layers {
		l.arrival(1, layer, 0, 1)
	}
	l.receive(wire.KindFin, 0, wire.Fin{Handle: 1, Pieces: uint64(small.Layers)}, nil)
	assert.True(t, n.engine.Idle(t.Context()))
	assert.Nil(t, w.leaseEnd(bound.Lease).Error)
}
