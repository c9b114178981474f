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

	KindLease  Kind = 0x20 // LeaseRequest, array: blocks u32 -> LeaseInfo
	KindRevoke Kind = 0x21 // Revoke -> OK at once; EVENT_LEASE when fenced

	KindPush       Kind = 0x30 // PushRequest, array: blocks u32 -> PushInfo
	KindPushLayer  Kind = 0x31 // no reply; array: LayerPart
	KindPushFinish Kind = 0x32 // no reply; PushFinish, array: notification bytes
	KindPushCancel Kind = 0x33 // no reply; PushCancel

	KindEventLayers   Kind = 0x40 // array: LayersVisible
	KindEventLease    Kind = 0x41 // LeaseEvent, array: notification bytes
	KindEventTransfer Kind = 0x42 // TransferEvent
	KindEventReleased Kind = 0x43 // Released

	KindSpans  Kind = 0x50 // no reply; Spans
	KindStatus Kind = 0x51 // -> Status
)

// Kinds of the peer protocol. The dialer of a control connection is the source of its transfers.
const (
	KindBind    Kind = 0x80 // Bind -> Bound, array: target blocks u32; or ERROR
	KindFin     Kind = 0x82 // Fin, array: notification bytes; no reply
	KindAbort   Kind = 0x83 // Abort; no reply; the source posts nothing more and holds nothing in flight
	KindDone    Kind = 0x84 // target -> source: Done; no reply
	KindEnded   Kind = 0x85 // target -> source: Ended; no reply
	KindPeerBye Kind = 0x86 // either side: no new transfers, the sender is draining
)

var kindNames = map[Kind]string{
	KindHello: "HELLO", KindHelloOK: "HELLO_OK", KindError: "ERROR", KindOK: "OK", KindPing: "PING",
	KindRegisterRegion: "REGISTER_REGION", KindDeregisterRegion: "DEREGISTER_REGION", KindRegisterCache: "REGISTER_CACHE",
	KindDropCache: "DROP_CACHE", KindBlocks: "BLOCKS", KindEvict: "EVICT", KindLease: "LEASE", KindRevoke: "REVOKE",
	KindPush: "PUSH", KindPushLayer: "PUSH_LAYER", KindPushFinish: "PUSH_FINISH", KindPushCancel: "PUSH_CANCEL",
	KindEventLayers: "EVENT_LAYERS", KindEventLease: "EVENT_LEASE", KindEventTransfer: "EVENT_TRANSFER",
	KindEventReleased: "EVENT_RELEASED", KindSpans: "SPANS", KindStatus: "STATUS",
	KindBind: "BIND", KindFin: "FIN", KindAbort: "ABORT", KindDone: "DONE", KindEnded: "ENDED", KindPeerBye: "BYE",
}

// String gives the kind's name in docs/protocol.md.
func (k Kind) String() string {
	if s, ok := kindNames[k]; ok {
		return s
	}
	return "KIND_" + strconv.Itoa(int(k))
}
