package wire

import "strconv"

// Kind is a frame's type. Numbers are never reused.
type Kind uint8

// Kinds of both protocols.
const (
	KindHello   Kind = 0x01
	KindHelloOK Kind = 0x02
	KindError   Kind = 0x03 // body: fault.Wire; answers the request of its id, or with id 0 ends the connection
	KindOK      Kind = 0x04 // answers a request; the body depends on it
	KindPing    Kind = 0x05
)

// Kinds of the local protocol.
const (
	KindRegisterRegion   Kind = 0x10 // fd; RegisterRegion -> RegionInfo
	KindDeregisterRegion Kind = 0x11 // DeregisterRegion -> OK; fences before it answers
	KindRegisterCache    Kind = 0x12 // RegisterCache, array: vouches -> CacheInfo, array: served blocks u32
	KindDropCache        Kind = 0x13 // DropCache -> OK; fences before it answers
	KindBlocks           Kind = 0x14 // BlocksQuery -> BlocksInfo, array: BlockEntry...
	KindEvict            Kind = 0x15 // Evict, array: blocks u32 -> OK; nobody can touch the blocks any more
	KindPublish          Kind = 0x16 // Publish, array: blocks u32, then keys -> PublishInfo
	KindLookup           Kind = 0x17 // Lookup, array: keys -> LookupInfo
	KindOpen             Kind = 0x18 // Open, array: keys -> OpenInfo

	KindLease     Kind = 0x20 // LeaseRequest, array: blocks u32 -> LeaseInfo
	KindRevoke    Kind = 0x21 // Revoke -> OK at once; EVENT_LEASE when fenced
	KindRenew     Kind = 0x22 // Renew -> OK
	KindAdvertise Kind = 0x23 // Advertise, array: RegionSpan... -> LeaseInfo

	KindPush       Kind = 0x30 // PushRequest, array: blocks u32 -> PushInfo
	KindPushLayer  Kind = 0x31 // no reply; array: LayerPart
	KindPushFinish Kind = 0x32 // no reply; PushFinish, array: notification bytes
	KindPushCancel Kind = 0x33 // no reply; PushCancel; of any transfer
	KindPull       Kind = 0x34 // PullRequest, array: blocks u32 -> PushInfo
	KindScatter    Kind = 0x35 // ScatterRequest, array: ScatterRange... -> PushInfo
	KindPrepare    Kind = 0x36 // Prepare, array: blocks u32, or ScatterRange... -> PushInfo; needs FeaturePrepared
	KindPost       Kind = 0x37 // no reply; array: Post...

	KindEventLayers   Kind = 0x40 // array: LayersVisible
	KindEventLease    Kind = 0x41 // LeaseEvent, array: notification bytes
	KindEventTransfer Kind = 0x42 // TransferEvent
	KindEventReleased Kind = 0x43 // Released
	KindEventHolder   Kind = 0x44 // HolderEvent, array: notification bytes
	KindEventGranted  Kind = 0x45 // GrantedEvent, array: blocks u32
	KindEventPrepared Kind = 0x46 // PreparedEvent: posts may begin
	KindEventPosted   Kind = 0x47 // array: Posted...

	KindSpans  Kind = 0x50 // no reply; Spans
	KindStatus Kind = 0x51 // -> Status

	KindInspect  Kind = 0x52 // Inspect -> InspectInfo, array: JSON rows
	KindDrain    Kind = 0x53 // Drain -> DrainInfo
	KindLogLevel Kind = 0x54 // LogLevel -> LogLevelInfo
	KindTrace    Kind = 0x55 // TraceQuery -> TraceInfo, array: OTLP JSON lines
	KindProbe    Kind = 0x56 // Probe -> ProbeInfo
	KindReport   Kind = 0x57 // Report -> OK, array: text; for the operator
	KindRing     Kind = 0x58 // three fds (ring, doorbell, bell); Ring -> OK; needs FeaturePrepared
)

// Kinds of the peer protocol. The dialer of a control connection is the source of its transfers.
const (
	KindBind    Kind = 0x80 // Bind -> Bound, array: target blocks u32; or ERROR
	KindFin     Kind = 0x82 // Fin, array: notification bytes; no reply
	KindAbort   Kind = 0x83 // Abort; no reply; the source posts nothing more and holds nothing in flight
	KindDone    Kind = 0x84 // target -> source: Done; no reply
	KindEnded   Kind = 0x85 // target -> source: Ended; no reply
	KindPeerBye Kind = 0x86 // either side: no new transfers, the sender is draining
	KindRelease Kind = 0x87 // Release, array: notification bytes -> OK (the memory was held throughout) or ERROR

	// An instance's lease: the node that was asked dials the owners of the other ranks.
	KindGrant       Kind = 0x88 // Grant, array: blocks u32 -> Granted
	KindGrantRenew  Kind = 0x89 // GrantRenew -> OK
	KindGrantRevoke Kind = 0x8A // GrantRevoke; no reply
	KindGrantLayers Kind = 0x8B // owner -> asker: GrantHandle, array: layers u32; no reply
	KindGrantEnded  Kind = 0x8C // owner -> asker: GrantEnded, array: notification bytes; no reply
	KindClaim       Kind = 0x8D // owner -> asker: Claim; answered by CLAIMED
	KindClaimed     Kind = 0x8E // asker -> owner: Claimed; no reply

	KindFind      Kind = 0x90 // Find, array: keys -> FindInfo
	KindOpenBlock Kind = 0x91 // OpenBlocks, array: keys -> OpenedBlocks

	KindProbeOpen Kind = 0x93 // ProbeOpen -> ProbeOpened
	KindProbeRun  Kind = 0x94 // ProbeRun -> ProbeRan
	KindTraceOf   Kind = 0x92 // TraceOf -> TraceOfInfo, array: OTLP JSON lines
)

var kindNames = map[Kind]string{
	KindHello: "HELLO", KindHelloOK: "HELLO_OK", KindError: "ERROR", KindOK: "OK", KindPing: "PING",
	KindRegisterRegion: "REGISTER_REGION", KindDeregisterRegion: "DEREGISTER_REGION", KindRegisterCache: "REGISTER_CACHE",
	KindDropCache: "DROP_CACHE", KindBlocks: "BLOCKS", KindEvict: "EVICT", KindLease: "LEASE", KindRevoke: "REVOKE",
	KindPush: "PUSH", KindPushLayer: "PUSH_LAYER", KindPushFinish: "PUSH_FINISH", KindPushCancel: "PUSH_CANCEL",
	KindEventLayers: "EVENT_LAYERS", KindEventLease: "EVENT_LEASE", KindEventTransfer: "EVENT_TRANSFER",
	KindEventReleased: "EVENT_RELEASED", KindSpans: "SPANS", KindStatus: "STATUS",
	KindPublish: "PUBLISH", KindLookup: "LOOKUP", KindOpen: "OPEN", KindRenew: "RENEW", KindAdvertise: "ADVERTISE",
	KindPull: "PULL", KindPrepare: "PREPARE", KindPost: "POST", KindEventPrepared: "EVENT_PREPARED", KindEventPosted: "EVENT_POSTED", KindRing: "RING", KindScatter: "SCATTER", KindEventHolder: "EVENT_HOLDER", KindEventGranted: "EVENT_GRANTED",
	KindRelease: "RELEASE", KindGrant: "GRANT", KindGrantRenew: "GRANT_RENEW", KindGrantRevoke: "GRANT_REVOKE",
	KindGrantLayers: "GRANT_LAYERS", KindGrantEnded: "GRANT_ENDED", KindClaim: "CLAIM", KindClaimed: "CLAIMED",
	KindFind: "FIND", KindOpenBlock: "OPEN_BLOCKS",
	KindProbe: "PROBE", KindReport: "REPORT", KindProbeOpen: "PROBE_OPEN", KindProbeRun: "PROBE_RUN",
	KindInspect: "INSPECT", KindDrain: "DRAIN", KindLogLevel: "LOG_LEVEL",
	KindTrace: "TRACE", KindTraceOf: "TRACE_OF",
	KindBind: "BIND", KindFin: "FIN", KindAbort: "ABORT", KindDone: "DONE", KindEnded: "ENDED", KindPeerBye: "BYE",
}

// String gives the kind's name in docs/protocol.md.
func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return "KIND_" + strconv.Itoa(int(k))
}
