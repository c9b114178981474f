package wire

import (
	"bytes"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

const (
	sampleEpoch       = "00112233445566778899aabbccddeeff"
	sampleLease       = "1e000000000000000000000000000001"
	sampleTransfer    = "7f000000000000000000000000000002"
	sampleTrace       = "4bf92f3577b34da6a3ce929d0e0e4736"
	sampleSpan        = "00f067aa0ba902b7"
	sampleTraceparent = "00-" + sampleTrace + "-" + sampleSpan + "-01"
)

func sampleSecret() []byte { return bytes.Repeat([]byte{0xA5}, 16) }

func sampleLayout() layout.Layout {
	return layout.Layout{Layers: 30, KVHeads: 3, HeadDim: 64, DType: "float32", BlockTokens: 32, Order: layout.HND, TPRank: 1, TPSize: 2}
}

func sampleFault() *fault.Wire {
	return fault.ToWire(&fault.Error{Code: fault.PeerLost, Op: "push", Peer: "prefill-0", Region: "kv", Field: "f",
		Detail: "no frame for 3 s", MayHaveWritten: true})
}

func sampleBind() *Bind {
	return &Bind{Lease: sampleLease, Secret: sampleSecret(), Transfer: sampleTransfer, Attempt: 1, Model: "smollm2",
		Revision: "r1", Compat: "fp32", Layout: sampleLayout(), Blocks: 3, RemainingMillis: 29_500, Traceparent: sampleTraceparent}
}

// wireStructs lists every JSON body and every object inside one, with the sections of docs/protocol.md that give its
// fields. TestWireStructsAreListed holds the list complete.
var wireStructs = []struct {
	new     func() any
	section []string
}{
	{func() any { return &Hello{} }, []string{"HELLO and HELLO_OK"}},
	{func() any { return &Absence{} }, []string{"HELLO and HELLO_OK", "STATUS"}},
	{func() any { return &fault.Wire{} }, []string{"ERROR"}},
	{func() any { return &layout.Layout{} }, []string{"Layout object"}},
	{func() any { return &RegisterRegion{} }, []string{"REGISTER_REGION"}},
	{func() any { return &RegionInfo{} }, []string{"REGISTER_REGION"}},
	{func() any { return &DeregisterRegion{} }, []string{"DEREGISTER_REGION"}},
	{func() any { return &RegisterCache{} }, []string{"REGISTER_CACHE"}},
	{func() any { return &CacheInfo{} }, []string{"REGISTER_CACHE"}},
	{func() any { return &DropCache{} }, []string{"DROP_CACHE"}},
	{func() any { return &BlocksQuery{} }, []string{"BLOCKS"}},
	{func() any { return &BlocksInfo{} }, []string{"BLOCKS"}},
	{func() any { return &Evict{} }, []string{"EVICT"}},
	{func() any { return &LeaseRequest{} }, []string{"LEASE"}},
	{func() any { return &LeaseInfo{} }, []string{"LEASE"}},
	{func() any { return &Revoke{} }, []string{"REVOKE"}},
	{func() any { return &PushRequest{} }, []string{"PUSH"}},
	{func() any { return &PushInfo{} }, []string{"PUSH"}},
	{func() any { return &PushFinish{} }, []string{"PUSH_FINISH"}},
	{func() any { return &PushCancel{} }, []string{"PUSH_CANCEL"}},
	{func() any { return &LeaseEvent{} }, []string{"EVENT_LEASE"}},
	{func() any { return &TransferEvent{} }, []string{"EVENT_TRANSFER"}},
	{func() any { return &Released{} }, []string{"EVENT_RELEASED"}},
	{func() any { return &Publish{} }, []string{"PUBLISH"}},
	{func() any { return &PublishInfo{} }, []string{"PUBLISH"}},
	{func() any { return &Lookup{} }, []string{"LOOKUP"}},
	{func() any { return &LookupInfo{} }, []string{"LOOKUP"}},
	{func() any { return &Holder{} }, []string{"LOOKUP", "FIND"}},
	{func() any { return &Open{} }, []string{"OPEN"}},
	{func() any { return &OpenInfo{} }, []string{"OPEN"}},
	{func() any { return &Renew{} }, []string{"RENEW"}},
	{func() any { return &Advertise{} }, []string{"ADVERTISE"}},
	{func() any { return &TransferIdentity{} }, []string{"PUSH", "PULL", "SCATTER"}},
	{func() any { return &PullRequest{} }, []string{"PULL"}},
	{func() any { return &ScatterRequest{} }, []string{"SCATTER"}},
	{func() any { return &HolderEvent{} }, []string{"EVENT_HOLDER"}},
	{func() any { return &GrantedEvent{} }, []string{"EVENT_GRANTED"}},
	{func() any { return &Release{} }, []string{"RELEASE"}},
	{func() any { return &Grant{} }, []string{"GRANT"}},
	{func() any { return &Granted{} }, []string{"GRANT"}},
	{func() any { return &GrantHandle{} }, []string{"GRANT_LAYERS"}},
	{func() any { return &GrantRevoke{} }, []string{"GRANT_REVOKE"}},
	{func() any { return &GrantRenew{} }, []string{"GRANT_RENEW"}},
	{func() any { return &GrantEnded{} }, []string{"GRANT_ENDED"}},
	{func() any { return &Claim{} }, []string{"CLAIM"}},
	{func() any { return &Claimed{} }, []string{"CLAIMED"}},
	{func() any { return &Find{} }, []string{"FIND", "OPEN_BLOCKS"}},
	{func() any { return &FindInfo{} }, []string{"FIND"}},
	{func() any { return &OpenBlocks{} }, []string{"OPEN_BLOCKS"}},
	{func() any { return &OpenedBlocks{} }, []string{"OPEN_BLOCKS"}},
	{func() any { return &Spans{} }, []string{"SPANS"}},
	{func() any { return &ClientSpan{} }, []string{"SPANS"}},
	{func() any { return &ClientSpanEvent{} }, []string{"SPANS"}},
	{func() any { return &Inspect{} }, []string{"INSPECT"}},
	{func() any { return &InspectInfo{} }, []string{"INSPECT"}},
	{func() any { return &BlockCounts{} }, []string{"INSPECT"}},
	{func() any { return &NodeRow{} }, []string{"INSPECT"}},
	{func() any { return &CacheRow{} }, []string{"INSPECT"}},
	{func() any { return &BlockRow{} }, []string{"INSPECT"}},
	{func() any { return &LeaseRow{} }, []string{"INSPECT"}},
	{func() any { return &HolderRow{} }, []string{"INSPECT"}},
	{func() any { return &TransferRow{} }, []string{"INSPECT"}},
	{func() any { return &Waiting{} }, []string{"INSPECT"}},
	{func() any { return &LayerGap{} }, []string{"INSPECT"}},
	{func() any { return &Drain{} }, []string{"DRAIN"}},
	{func() any { return &DrainInfo{} }, []string{"DRAIN"}},
	{func() any { return &LogLevel{} }, []string{"LOG_LEVEL"}},
	{func() any { return &LogLevelInfo{} }, []string{"LOG_LEVEL"}},
	{func() any { return &Status{} }, []string{"STATUS"}},
	{func() any { return &Unregistered{} }, []string{"STATUS"}},
	{func() any { return &Probe{} }, []string{"PROBE"}},
	{func() any { return &ProbeInfo{} }, []string{"PROBE"}},
	{func() any { return &ProbeStep{} }, []string{"PROBE", "PROBE_RUN"}},
	{func() any { return &ProbeWay{} }, []string{"PROBE"}},
	{func() any { return &Report{} }, []string{"REPORT"}},
	{func() any { return &ProbeOpen{} }, []string{"PROBE_OPEN"}},
	{func() any { return &ProbeOpened{} }, []string{"PROBE_OPEN"}},
	{func() any { return &ProbeRun{} }, []string{"PROBE_RUN"}},
	{func() any { return &ProbeRan{} }, []string{"PROBE_RUN"}},
	{func() any { return &TraceQuery{} }, []string{"TRACE"}},
	{func() any { return &TraceInfo{} }, []string{"TRACE"}},
	{func() any { return &TraceOf{} }, []string{"TRACE_OF"}},
	{func() any { return &TraceOfInfo{} }, []string{"TRACE_OF"}},
	{func() any { return &Bind{} }, []string{"BIND"}},
	{func() any { return &Bound{} }, []string{"BIND"}},
	{func() any { return &Fin{} }, []string{"FIN"}},
	{func() any { return &Abort{} }, []string{"ABORT"}},
	{func() any { return &Done{} }, []string{"DONE"}},
	{func() any { return &Ended{} }, []string{"ENDED"}},
	{func() any { return &Prepare{} }, []string{"PREPARE"}},
	{func() any { return &PreparedEvent{} }, []string{"EVENT_PREPARED"}},
	{func() any { return &Ring{} }, []string{"RING"}},
	{func() any { return &Ticket{} }, []string{"Tickets"}},
	{func() any { return &TicketGrant{} }, []string{"Tickets"}},
}

// golden is one frame of version 1 as it must stay.
type golden struct {
	name  string // of its file
	frame Frame
	body  any // what the JSON decodes to; nil: none
}

func goldenCases() []golden {
	var out []golden
	add := func(name string, kind Kind, request uint64, body any, array []byte) *golden {
		f, err := NewFrame(kind, request, body, array)
		if err != nil {
			panic(err)
		}
		out = append(out, golden{name: name, frame: f, body: body})
		return &out[len(out)-1]
	}
	noReply := func(name string, kind Kind, body any, array []byte) {
		add(name, kind, 0, body, array).frame.Flags = FlagNoReply
	}
	blocks := AppendU32s(nil, []uint32{4, 1, 9})
	note := []byte("first token")

	add("hello", KindHello, 1, &Hello{MinVersion: 1, MaxVersion: 1, Tenant: "default", Software: "example 1.0",
		Process: "decode", Pid: 4242}, nil)
	add("hello_ok", KindHelloOK, 1, &Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Tenant: "default", Software: "kvxfer 0.1.0",
		Node: "decode-0", Epoch: sampleEpoch, BootID: "5f0c8f0e-0001-4c1b-9d70-1b8a6a0c0a11"}, nil)
	add("hello_ok_watched", KindHelloOK, 1, &Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Tenant: "default", Node: "decode-0",
		Epoch: sampleEpoch, BootID: "5f0c8f0e-0001-4c1b-9d70-1b8a6a0c0a11", ProcessWatched: true}, nil)
	add("hello_peer", KindHello, 1, &Hello{MinVersion: 1, MaxVersion: 2, Required: []string{"a"}, Optional: []string{"b"},
		Tenant: "default", Software: "kvxfer 0.1.0", Node: "prefill-0", Epoch: sampleEpoch, WantNode: "decode-0",
		WantEpoch: sampleEpoch, Providers: []string{"tcp"}}, nil)
	add("hello_ok_peer", KindHelloOK, 1, &Hello{MinVersion: 1, MaxVersion: 1, Version: 1, Tenant: "default", Node: "decode-0",
		Epoch: sampleEpoch, Provider: "tcp", Reason: "the only one on both sides", Params: sampleSecret()}, nil)
	add("error", KindError, 7, sampleFault(), nil)
	add("error_connection", KindError, 0, fault.ToWire(violation("magic", "not a kvxfer frame")), nil)
	add("ping", KindPing, 8, nil, nil)
	add("ok_ping", KindOK, 8, nil, nil)

	add("register_region", KindRegisterRegion, 2, &RegisterRegion{Name: "kv", ID: sampleLease, Kind: RegionMemfd, Size: 1 << 30}, nil).frame.FDs = 1
	add("ok_register_region", KindOK, 2, &RegionInfo{Region: 1, MemoryKind: "host"}, nil)
	add("deregister_region", KindDeregisterRegion, 3, &DeregisterRegion{Region: 1}, nil)
	add("register_cache", KindRegisterCache, 4, &RegisterCache{Name: "decode-0", Region: 1, Model: "smollm2", Revision: "r1",
		Compat: "fp32", Layout: sampleLayout(), NumBlocks: 728}, AppendVouches(nil, []Vouch{{Block: 4, Generation: 11}, {Block: 9, Generation: 12}}))
	add("ok_register_cache", KindOK, 4, &CacheInfo{Cache: 1, BlockBytes: 1_474_560}, AppendU32s(nil, []uint32{4}))
	add("drop_cache", KindDropCache, 5, &DropCache{Cache: 1}, nil)
	add("blocks", KindBlocks, 6, &BlocksQuery{Cache: 1}, nil)
	add("ok_blocks", KindOK, 6, &BlocksInfo{Total: 728, Leased: 1, Committed: 1, Revoking: 1, Held: 1}, AppendBlockEntries(nil, []BlockEntry{
		{Block: 1, State: StateLeased, Generation: 13}, {Block: 4, State: StateCommitted, Generation: 11},
		{Block: 5, State: StateRevoking}, {Block: 9, State: StateHeld}}))
	add("evict", KindEvict, 9, &Evict{Cache: 1}, blocks)
	add("lease", KindLease, 10, &LeaseRequest{Cache: 1, Mode: ModeWrite, TTLMillis: 30_000, Traceparent: sampleTraceparent}, blocks)
	add("ok_lease", KindOK, 10, &LeaseInfo{Lease: 5, Ticket: sampleTicket().Encode(), Generation: 13}, nil)
	add("revoke", KindRevoke, 11, &Revoke{Lease: 5}, nil)
	add("push", KindPush, 12, &PushRequest{Cache: 2, Ticket: sampleTicket().Encode(), TimeoutMillis: 30_000, Layerwise: true,
		Traceparent: sampleTraceparent, SpanID: sampleSpan}, blocks)
	add("ok_push", KindOK, 12, &PushInfo{Transfer: 6, TransferID: sampleTransfer, TraceID: sampleTrace, ParentID: sampleSpan, Sampled: true}, nil)
	noReply("push_layer", KindPushLayer, nil, AppendLayerPart(nil, LayerPart{Transfer: 6, Layer: 29, First: 1, Count: 2}))
	noReply("push_finish", KindPushFinish, &PushFinish{Transfer: 6}, note)
	noReply("push_cancel", KindPushCancel, &PushCancel{Transfer: 6}, nil)
	add("event_layers", KindEventLayers, 0, nil, AppendLayersVisible(nil, LayersVisible{Lease: 5, Layers: []uint32{0, 1}}))
	add("event_lease", KindEventLease, 0, &LeaseEvent{Lease: 5, TransferID: sampleTransfer, Peer: "prefill-0", Provider: "tcp",
		Bytes: 4_423_680, Generation: 13}, note)
	add("event_lease_failed", KindEventLease, 0, &LeaseEvent{Lease: 5, Bytes: 100, Error: sampleFault()}, nil)
	add("event_transfer", KindEventTransfer, 0, &TransferEvent{Transfer: 6, TransferID: sampleTransfer, Peer: "decode-0",
		Provider: "tcp", Reason: "the only one on both sides", Blocks: 3, Bytes: 4_423_680, Released: true,
		FirstNanos: 1_000_000, LastNanos: 9_000_000, BusyNanos: 7_000_000}, nil)
	add("event_transfer_failed", KindEventTransfer, 0, &TransferEvent{Transfer: 6, TransferID: sampleTransfer, Blocks: 3, Error: sampleFault()}, nil)
	add("event_released", KindEventReleased, 0, &Released{Transfer: 6}, nil)
	noReply("spans", KindSpans, &Spans{Spans: []ClientSpan{{TraceID: sampleTrace, SpanID: sampleSpan, ParentID: "0000000000000001",
		Name: "kvxfer.push", StartNanos: 1_700_000_000_000_000_000, EndNanos: 1_700_000_000_100_000_000,
		Attributes: map[string]any{"kvxfer.blocks": "3"}, Events: []ClientSpanEvent{{Name: "layer 0", Nanos: 1_700_000_000_000_000_001}},
		Error: "PeerLost"}}}, nil)
	add("status", KindStatus, 13, nil, nil)
	add("ok_status", KindOK, 13, &Status{Node: "decode-0", Epoch: sampleEpoch, Version: "0.1.0", PeerAddr: "[::1]:7420",
		HTTPAddr: "[::1]:7421", Providers: []string{"tcp"}, Draining: true, Registry: true, Nodes: []string{"decode-0", "prefill-0"},
		Clients: 1, Leases: 2, Transfers: 3}, nil)

	inspectCases(func(name string, kind Kind, request uint64, body any, array []byte) {
		add(name, kind, request, body, array)
	})
	add("bind", KindBind, 2, sampleBind(), nil)
	add("ok_bind", KindOK, 2, &Bound{Handle: 1, Key: 77, Layout: sampleLayout(), NumBlocks: 728, RemainingMillis: 28_000,
		Traceparent: sampleTraceparent}, blocks)
	noReply("fin", KindFin, &Fin{Handle: 1, Pieces: 90}, note)
	noReply("abort", KindAbort, &Abort{Handle: 1, Error: sampleFault()}, nil)
	noReply("done", KindDone, &Done{Handle: 1, Bytes: 4_423_680}, nil)
	noReply("ended", KindEnded, &Ended{Handle: 1, Error: sampleFault()}, nil)
	noReply("bye", KindPeerBye, nil, nil)

	keys := bytes.Repeat([]byte{1, 2, 3, 4}, 12)
	identity := TransferIdentity{TransferID: sampleTransfer, Attempt: 2, Instance: "prefill"}
	find := Find{Model: "smollm2", Revision: "r1", Compat: "fp32", Layout: sampleLayout(), KeyBytes: 16}
	holder := Holder{Node: "decode-0", Epoch: sampleEpoch, Addr: "[::1]:7420", Cache: "decode-0", Blocks: 2}
	add("register_region_process", KindRegisterRegion, 2, &RegisterRegion{Name: "kv", ID: sampleLease, Kind: RegionProcess, Size: 1 << 30, Addr: 1 << 40}, nil).frame.FDs = 1
	add("register_region_adopted", KindRegisterRegion, 2, &RegisterRegion{Name: "kv", ID: sampleLease, Kind: RegionMemfd, Size: 1 << 30, Offset: 16}, nil).frame.FDs = 1
	add("ok_register_region_process", KindOK, 2, &RegionInfo{Region: 1, MemoryKind: "process", Guarantee: GuaranteeLiveClient}, nil)
	add("register_cache_instance", KindRegisterCache, 4, &RegisterCache{Name: "decode-0", Region: 1, Model: "smollm2", Layout: sampleLayout(), NumBlocks: 728,
		Instance: "decode", InstanceKey: sampleSecret()}, nil)
	add("publish", KindPublish, 14, &Publish{Cache: 1, KeyBytes: 16}, append(AppendU32s(nil, []uint32{4, 1, 9}), keys...))
	add("ok_publish", KindOK, 14, &PublishInfo{Generation: 14}, nil)
	add("lookup", KindLookup, 15, &Lookup{Model: "smollm2", Revision: "r1", Compat: "fp32", Layout: sampleLayout(), KeyBytes: 16, LocalOnly: true, TimeoutMillis: 500}, keys)
	add("ok_lookup", KindOK, 15, &LookupInfo{Holders: []Holder{holder}, Unasked: []string{"prefill-1"}}, nil)
	add("open", KindOpen, 16, &Open{Node: "decode-0", Epoch: sampleEpoch, Addr: "[::1]:7420", Cache: "decode-0", Model: "smollm2", Revision: "r1",
		Compat: "fp32", Layout: sampleLayout(), KeyBytes: 16, TTLMillis: 30_000, TimeoutMillis: 500}, keys)
	add("ok_open", KindOK, 16, &OpenInfo{Ticket: sampleTicket().Encode()}, nil)
	add("lease_read", KindLease, 10, &LeaseRequest{Cache: 1, Mode: ModeRead, Readers: 4, TTLMillis: 30_000}, blocks)
	add("lease_instance", KindLease, 10, &LeaseRequest{Instance: "decode", InstanceKey: sampleSecret(), Mode: ModeWrite, TTLMillis: 30_000}, blocks)
	add("ok_lease_instance", KindOK, 10, &LeaseInfo{Lease: 5, Ticket: sampleTicket().Encode(), LeaseID: sampleLease, Ranks: 2}, nil)
	add("renew", KindRenew, 17, &Renew{Lease: 5, TTLMillis: 30_000}, nil)
	add("advertise", KindAdvertise, 18, &Advertise{Region: 1, Mode: ModeWrite, Uses: 1, TTLMillis: 30_000, Traceparent: sampleTraceparent},
		AppendRegionSpans(nil, []RegionSpan{{Off: 4096, Len: 8192}}))
	add("push_rank", KindPush, 12, &PushRequest{Cache: 2, Ticket: sampleRankTicket().Encode(), TimeoutMillis: 30_000, TransferIdentity: identity}, blocks)
	add("pull", KindPull, 19, &PullRequest{Cache: 2, Ticket: sampleTicket().Encode(), TimeoutMillis: 30_000, Traceparent: sampleTraceparent,
		SpanID: sampleSpan, Notification: note, TransferIdentity: identity}, blocks)
	add("scatter", KindScatter, 20, &ScatterRequest{Region: 1, Mode: ModeRead, Ticket: sampleTicket().Encode(), TimeoutMillis: 30_000,
		Traceparent: sampleTraceparent, SpanID: sampleSpan, Notification: note, TransferIdentity: identity}, AppendScatterRanges(nil, []ScatterRange{{Local: 0, Remote: 4096, Len: 64}}))
	add("event_holder", KindEventHolder, 0, &HolderEvent{Lease: 5, TransferID: sampleTransfer, Peer: "decode-0", Provider: "tcp", Bytes: 64,
		Guarantee: GuaranteeLiveClient, Error: fault.ToWire(&fault.Error{Code: fault.MemoryFault, Op: "lease", Guarantee: GuaranteeLiveClient})}, note)
	add("event_lease_process", KindEventLease, 0, &LeaseEvent{Lease: 5, Bytes: 100, Generation: 13, Guarantee: GuaranteeLiveClient}, nil)
	add("event_granted", KindEventGranted, 0, &GrantedEvent{Lease: 5, Cache: 1, LeaseID: sampleLease, Mode: ModeWrite, Generation: 13}, blocks)
	add("event_transfer_pull", KindEventTransfer, 0, &TransferEvent{Transfer: 6, TransferID: sampleTransfer, Blocks: 3, Bytes: 4_423_680, Released: true,
		Generation: 13, Guarantee: GuaranteeLiveClient}, nil)

	add("bind_raw", KindBind, 3, &Bind{Lease: sampleLease, Secret: sampleSecret(), Transfer: sampleTransfer, Attempt: 2, RemainingMillis: 500, Mode: ModeRead,
		Raw: true, Instance: "prefill"}, nil)
	add("ok_bind_raw", KindOK, 3, &Bound{Handle: 2, Key: 78, RemainingMillis: 500, RegionBytes: 1 << 20}, nil)
	add("release", KindRelease, 4, &Release{Handle: 2, Bytes: 64}, note)
	add("ok_release", KindOK, 4, nil, nil)
	add("grant", KindGrant, 5, &Grant{Cache: "decode-1", Instance: "decode", InstanceKey: sampleSecret(), LeaseID: sampleLease, Mode: ModeRead, Readers: 4,
		TTLMillis: 30_000, Traceparent: sampleTraceparent}, blocks)
	add("ok_grant", KindOK, 5, &Granted{Handle: 3, Lease: sampleLease, Secret: sampleSecret(), Generation: 13, Layers: 30, Rank: 1}, nil)
	add("grant_renew", KindGrantRenew, 6, &GrantRenew{Handle: 3, TTLMillis: 30_000}, nil)
	noReply("grant_revoke", KindGrantRevoke, &GrantRevoke{Handle: 3, Error: sampleFault()}, nil)
	noReply("grant_layers", KindGrantLayers, &GrantHandle{Handle: 3}, AppendU32s(nil, []uint32{0, 1}))
	noReply("grant_ended", KindGrantEnded, &GrantEnded{Handle: 3, TransferID: sampleTransfer, Peer: "prefill-0", Provider: "tcp", Bytes: 64, Error: sampleFault()}, note)
	noReply("claim", KindClaim, &Claim{Handle: 3, Claim: 1, Transfer: sampleTransfer, Attempt: 2}, nil)
	noReply("claimed", KindClaimed, &Claimed{Claim: 1, Error: sampleFault()}, nil)
	add("find", KindFind, 7, &find, keys)
	add("ok_find", KindOK, 7, &FindInfo{Holders: []Holder{holder}}, nil)
	add("open_blocks", KindOpenBlock, 8, &OpenBlocks{Find: find, Cache: "decode-0", TTLMillis: 30_000}, keys)
	only := identity
	only.Provider = "tcp"
	add("scatter_provider", KindScatter, 20, &ScatterRequest{Region: 1, Mode: ModeRead, Ticket: sampleTicket().Encode(), TimeoutMillis: 30_000,
		TransferIdentity: only}, AppendScatterRanges(nil, []ScatterRange{{Local: 0, Remote: 4096, Len: 64}}))
	step := ProbeStep{Op: ModeWrite, From: "decode-0", Provider: "tcp", Reason: "the only one on both sides", Bytes: 1 << 20, Nanos: 7_000_000}
	failed := ProbeStep{Op: ModeRead, From: "prefill-0", ByPeer: true, Error: sampleFault()}
	add("probe", KindProbe, 21, &Probe{Node: "prefill-0", Provider: "tcp", Bytes: 1 << 20, TimeoutMillis: 10_000}, nil)
	add("ok_probe", KindOK, 21, &ProbeInfo{Node: "prefill-0", Epoch: sampleEpoch, Addr: "[::1]:7420", Providers: []string{"shm", "tcp"},
		Steps: []ProbeStep{step, failed}}, nil)
	add("ok_probe_ways", KindOK, 21, &ProbeInfo{Node: "prefill-0", Epoch: sampleEpoch, Addr: "[::1]:7420", Providers: []string{"verbs"}, Steps: []ProbeStep{step, failed},
		Ways:   []ProbeWay{{Local: "mlx5_0:1", Peer: "mlx5_2:1", LocalAddr: "10.0.0.1", PeerAddr: "10.0.0.2", MTU: 4096, Shared: true, Why: "10.0.0.1 and 10.0.0.2 are both in 10.0.0.0/24"}},
		Unused: []string{"mlx5_1:1: no route"}}, nil)
	add("report", KindReport, 22, &Report{What: ReportLog}, nil)
	add("ok_report", KindOK, 22, nil, []byte("a line\n"))
	add("probe_open", KindProbeOpen, 9, &ProbeOpen{Bytes: 1 << 20, Seed: bytes.Repeat([]byte{7}, 32), TTLMillis: 10_000}, nil)
	add("ok_probe_open", KindOK, 9, &ProbeOpened{WriteTicket: sampleTicket().Encode(), ReadTicket: sampleTicket().Encode()}, nil)
	add("probe_run", KindProbeRun, 10, &ProbeRun{Provider: "tcp", WriteTicket: sampleTicket().Encode(), ReadTicket: sampleTicket().Encode(), TimeoutMillis: 9_000}, nil)
	add("ok_probe_run", KindOK, 10, &ProbeRan{Received: true, Steps: []ProbeStep{step, failed}}, nil)
	lines := []byte("{\"resourceSpans\":[]}\n")
	add("trace", KindTrace, 21, &TraceQuery{ID: sampleTrace, LocalOnly: true, TimeoutMillis: 500}, nil)
	add("ok_trace", KindOK, 21, &TraceInfo{TraceID: sampleTrace, Unasked: []string{"decode-1"}, LeftOff: 1}, lines)
	add("trace_of", KindTraceOf, 9, &TraceOf{ID: sampleTransfer}, nil)
	add("ok_trace_of", KindOK, 9, &TraceOfInfo{TraceID: sampleTrace, Peers: []string{"decode-0"}, LeftOff: 1}, lines)
	add("ok_open_blocks", KindOK, 8, &OpenedBlocks{Lease: sampleLease, Secret: sampleSecret(), Blocks: 3}, nil)
	absent := []Absence{{Provider: "verbs", Why: "no RDMA device"}}
	add("hello_peer_absent", KindHello, 1, &Hello{MinVersion: 1, MaxVersion: 1, Tenant: "default", Node: "prefill-0", Epoch: sampleEpoch,
		WantNode: "decode-0", WantEpoch: sampleEpoch, Providers: []string{"shm", "tcp"}, Absent: absent}, nil)
	add("ok_status_absent", KindOK, 13, &Status{Node: "decode-0", Epoch: sampleEpoch, Version: "0.1.0", PeerAddr: "[::1]:7420", Providers: []string{"tcp"},
		Nodes: []string{"decode-0"}, Absent: absent, Unregistered: []Unregistered{{Provider: "verbs", Regions: 2, Why: "RLIMIT_MEMLOCK"}}}, nil)
	preparedCases(add, noReply)
	return out
}
