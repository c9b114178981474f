package wire

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// sampleRowSet is one row of each kind, with every field that can be set together.
type sampleRowSet struct {
	Nodes     []NodeRow
	Caches    []CacheRow
	Blocks    []BlockRow
	Leases    []LeaseRow
	Transfers []TransferRow
}

func sampleRows() *sampleRowSet {
	waiting := func(what, text string) *Waiting {
		return &Waiting{For: what, Text: text, Ms: 1500, Peer: "prefill-0", Addr: "[::1]:7420"}
	}
	gap, numa := []LayerGap{{Layer: 3, Pieces: 2}}, 1
	return &sampleRowSet{
		Nodes: []NodeRow{{Node: "decode-0", Own: true, Epoch: sampleEpoch, PeerAddr: "[::1]:7420", HTTPAddr: "[::1]:7421", Version: "0.1.0", MinProtocol: 1,
			MaxProtocol: 1, Providers: []string{"shm", "tcp"}, MemoryKinds: []string{"host"}, Draining: true, StartedMs: 1_700_000_000_000, ToldMs: 1200}},
		Caches: []CacheRow{{Node: "decode-0", Tenant: "default", Cache: "kv", Model: "smollm2", Revision: "r1", Compat: "fp32",
			Layout: json.RawMessage(`{"layers":30}`), LayoutText: "HND 30L x 3H x 64D x 32T float32 tp 1/2", MemoryKind: "host", NUMANode: &numa, Blocks: 728, Bytes: 1_073_479_680,
			Instance: "decode", Rank: 1, Ranks: 2}},
		Blocks: []BlockRow{{Block: 4, State: "COMMITTED", Generation: 13, Holds: 1, Key: "0a0b"}, {Block: 9, State: "LEASED", Generation: 14, Lease: sampleLease}},
		Leases: []LeaseRow{{LeaseID: sampleLease, Kind: "read", Part: sampleTransfer, State: "OPEN", Tenant: "default", Memory: "kv", Mode: ModeRead, Blocks: 3,
			Generation: 13, Peer: "prefill-0", TransferID: sampleTransfer, TraceID: sampleTrace, Provider: "tcp", Pieces: 90, Arrived: 60, Bytes: 4096,
			RemainingMs: 28_000, AgeMs: 2000, MovedMs: 1500, Process: "decode", Pid: 4242, Waiting: waiting(WaitHolder, "RELEASE"), Uses: 2, Used: 1,
			Holders: []HolderRow{{TransferID: sampleTransfer, Peer: "prefill-0", Provider: "tcp", State: "BOUND", MovedMs: 1500}}, Missing: gap}},
		Transfers: []TransferRow{{TransferID: sampleTransfer, Attempt: 2, Kind: "push", Mode: ModeWrite, State: "OPEN", Tenant: "default", Memory: "kv", Blocks: 3,
			Peer: "prefill-0", PeerAddr: "[::1]:7420", LeaseID: sampleLease, TraceID: sampleTrace, Instance: "prefill", Provider: "tcp", Reason: "the only one",
			Pieces: 90, HandedOver: 60, Placed: 30, Bytes: 4096, Outstanding: 30, Operations: 2, Queued: 1, Depth: 3, RemainingMs: 28_000, AgeMs: 2000, MovedMs: 1500,
			BusyMs: 400, EndedMs: 10, Process: "decode", Pid: 4242, Result: "PeerLost", Error: sampleFault(), Waiting: waiting(WaitProvider, "operations"), Missing: gap}},
	}
}

func packed[T any](rows []T) []byte {
	raw, err := PackRows(rows)
	if err != nil {
		panic(err)
	}
	return raw
}

// inspectCases are the golden frames of what people ask a daemon.
func inspectCases(add func(name string, kind Kind, request uint64, body any, array []byte)) {
	rows := sampleRows()
	add("hello_observer", KindHello, 1, &Hello{MinVersion: 1, MaxVersion: 1, Software: "kvxfer 0.1.0", Process: "kvxfer", Pid: 4243, Observer: true}, nil)
	add("inspect", KindInspect, 21, &Inspect{What: InspectTransfers, After: "t12", Limit: 100, AllTenants: true, Cache: "kv", ID: "7f", Ended: true, Detail: true}, nil)
	add("inspect_blocks", KindInspect, 22, &Inspect{What: InspectBlocks, Cache: "kv", State: "COMMITTED"}, nil)
	add("inspect_caches", KindInspect, 23, &Inspect{What: InspectCaches, Node: "decode-0"}, nil)
	add("ok_inspect_nodes", KindOK, 20, &InspectInfo{Stale: true}, packed(rows.Nodes))
	add("ok_inspect_caches", KindOK, 23, &InspectInfo{Next: "default/decode-0/kv"}, packed(rows.Caches))
	add("ok_inspect_blocks", KindOK, 22, &InspectInfo{Next: "b10", Counts: &BlockCounts{Total: 728, Free: 725, Leased: 1, Committed: 1, Revoking: 1, Held: 1}}, packed(rows.Blocks))
	add("ok_inspect_leases", KindOK, 24, &InspectInfo{}, packed(rows.Leases))
	add("ok_inspect_transfers", KindOK, 21, &InspectInfo{Next: "e7"}, packed(rows.Transfers))
	add("drain", KindDrain, 25, &Drain{Wait: true, TimeoutMillis: 5000}, nil)
	add("ok_drain", KindOK, 25, &DrainInfo{Leases: 2, Transfers: 3, Clients: 1}, nil)
	add("log_level", KindLogLevel, 26, &LogLevel{Level: "debug"}, nil)
	add("ok_log_level", KindOK, 26, &LogLevelInfo{Level: "debug", Was: "info"}, nil)
}

func TestRowsRoundTrip(t *testing.T) {
	want := sampleRows()
	got, err := Rows[TransferRow](packed(want.Transfers))
	require.NoError(t, err)
	assert.Equal(t, want.Transfers, got)
	none, err := Rows[NodeRow](packed[NodeRow](nil))
	require.NoError(t, err)
	assert.Empty(t, none)
	_, err = Rows[NodeRow]([]byte(`{"node":"secret-text"}`))
	require.ErrorIs(t, err, fault.ErrProtocolViolation)
	assert.NotContains(t, err.Error(), "secret-text")
}

func TestQueriesNameFieldAndRange(t *testing.T) {
	type validator interface{ Validate() error }
	for field, v := range map[string]validator{
		"what":       &Inspect{What: "secrets"},
		"limit":      &Inspect{What: InspectNodes, Limit: MaxInspectRows + 1},
		"after":      &Inspect{What: InspectNodes, After: strings.Repeat("x", 1000)},
		"node":       &Inspect{What: InspectCaches, Node: "a/b"},
		"cache":      &Inspect{What: InspectBlocks},
		"id":         &Inspect{What: InspectLeases, ID: "XYZ"},
		"state":      &Inspect{What: InspectBlocks, Cache: "kv", State: "LOST"},
		"timeout_ms": &Drain{Wait: true},
		"level":      &LogLevel{Level: "loud"},
	} {
		err := v.Validate()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, field, fault.From("", err).Field)
		assert.ErrorContains(t, err, "allowed")
	}
	assert.Error(t, (&Inspect{What: InspectBlocks, Cache: "a/b c"}).Validate())
	for _, v := range []validator{&Inspect{What: InspectBlocks, Cache: "tenant/kv", State: "HELD"}, &Inspect{What: InspectLeases, ID: "0f"}, &Drain{}, &LogLevel{}} {
		assert.NoError(t, v.Validate())
	}
	for _, what := range inspectWhats {
		assert.NoError(t, (&Inspect{What: what, Cache: "kv"}).Validate(), fmt.Sprint(what))
	}
}

func FuzzInspect(f *testing.F) {
	for _, c := range goldenCases() {
		if c.frame.Kind == KindInspect {
			f.Add(c.frame.JSON, c.frame.Array)
		}
	}
	f.Add([]byte(`{"what":"blocks","cache":"/"}`), []byte(`[{"block":1}]`))
	f.Fuzz(func(t *testing.T, body, array []byte) {
		var q Inspect
		if err := (&Frame{Kind: KindInspect, JSON: body}).Decode(&q); err == nil {
			if err := q.Validate(); err != nil {
				require.ErrorIs(t, err, fault.ErrInvalidArgument)
				require.Less(t, len(err.Error()), 512)
			}
			require.Positive(t, q.Rows())
		}
		if rows, err := Rows[LeaseRow](array); err == nil {
			again, err := PackRows(rows)
			require.NoError(t, err)
			back, err := Rows[LeaseRow](again)
			require.NoError(t, err)
			require.Len(t, back, len(rows))
		} else {
			require.ErrorIs(t, err, fault.ErrProtocolViolation)
		}
	})
}
