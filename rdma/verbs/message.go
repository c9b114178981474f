package verbs

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// Messages of the side channel: a length of four bytes (of what follows), a kind, fields in little-endian order.
//
// From the initiator: laneOpen, laneShut, clean, query, records. From the target: laneReady, laneDead, window, keys, revoke, credit.
// Those of one direction are handled in the order in which they were sent, which matters: a revoke comes before the laneDead
// that its fence caused, so nothing of a fenced window is posted again.
type kind uint8

const (
	kindLaneOpen  kind = 1
	kindLaneShut  kind = 2
	kindClean     kind = 3
	kindQuery     kind = 4
	kindRecords   kind = 5
	kindLaneReady kind = 16
	kindLaneDead  kind = 17
	kindWindow    kind = 18
	kindKeys      kind = 19
	kindRevoke    kind = 20
	kindCredit    kind = 21
)

const maxMessage = 1 << 20

// laneRef names a queue pair of a session: the lane, and how often it was made anew.
type laneRef struct {
	lane uint16
	gen  uint32
}

// laneOpen asks for the target's queue pair of a lane. The target first ends the one of the generation before.
type laneOpen struct {
	laneRef
	rail     uint16   // the target's, in the order of its parameters
	toGID    [16]byte // the target's own that was chosen
	fromGID  [16]byte
	fromLID  uint16
	mtu      uint16 // of the initiator's port
	qpn, psn uint32
	readInit uint16 // READs that the initiator would have outstanding
}

func (m *laneOpen) bytes(w *writer) {
	w.u16(m.lane)
	w.u32(m.gen)
	w.u16(m.rail)
	w.raw(m.toGID[:])
	w.raw(m.fromGID[:])
	w.u16(m.fromLID)
	w.u16(m.mtu)
	w.u32(m.qpn)
	w.u32(m.psn)
	w.u16(m.readInit)
}

func (m *laneOpen) parse(r *reader) {
	m.lane, m.gen, m.rail = r.u16(), r.u32(), r.u16()
	r.raw(m.toGID[:])
	r.raw(m.fromGID[:])
	m.fromLID, m.mtu, m.qpn, m.psn, m.readInit = r.u16(), r.u16(), r.u32(), r.u32(), r.u16()
}

// laneReady says that the target's queue pair answers: only now the initiator may post.
type laneReady struct {
	laneRef
	qpn, psn uint32
	mtu      uint16 // agreed: the lower of both
	readResp uint16 // READs that the target answers at a time
	receives uint16 // SENDs that may be on their way
}

func (m *laneReady) bytes(w *writer) {
	w.u16(m.lane)
	w.u32(m.gen)
	w.u32(m.qpn)
	w.u32(m.psn)
	w.u16(m.mtu)
	w.u16(m.readResp)
	w.u16(m.receives)
}

func (m *laneReady) parse(r *reader) {
	m.lane, m.gen, m.qpn, m.psn, m.mtu, m.readResp, m.receives = r.u16(), r.u32(), r.u32(), r.u32(), r.u16(), r.u16(), r.u16()
}

// laneDead says that no packet to the target's queue pair of that generation places a byte any more: what was under way may be
// posted elsewhere. With a code it could not be made.
type laneDead struct {
	laneRef
	taken uint64     // records in all that the target has taken from it
	code  fault.Code // 0: ended
	text  string
}

func (m *laneDead) bytes(w *writer) {
	w.u16(m.lane)
	w.u32(m.gen)
	w.u64(m.taken)
	w.u16(uint16(m.code))
	w.text(m.text)
}

func (m *laneDead) parse(r *reader) {
	m.lane, m.gen, m.taken, m.code, m.text = r.u16(), r.u32(), r.u64(), fault.Code(r.u16()), r.text()
}

// laneShut says that the initiator's queue pair is no more; the target answers with laneDead.
type laneShut struct{ laneRef }

func (m *laneShut) bytes(w *writer) { w.u16(m.lane); w.u32(m.gen) }
func (m *laneShut) parse(r *reader) { m.lane, m.gen = r.u16(), r.u32() }

// recordsMsg repeats records that the target's device has acknowledged and the target has not taken before its queue pair ended: their
// completions went with it. The bytes of their WRITEs are in place; the operations have completed, so nobody posts them again.
type recordsMsg struct {
	laneRef
	records [][]byte
}

func (m *recordsMsg) bytes(w *writer) {
	w.u16(m.lane)
	w.u32(m.gen)
	w.u16(uint16(len(m.records)))
	for _, b := range m.records {
		w.u16(uint16(len(b)))
		w.raw(b)
	}
}

func (m *recordsMsg) parse(r *reader) {
	m.lane, m.gen = r.u16(), r.u32()
	n := int(r.u16())
	r.bad = r.bad || n > recvDepth
	for ; n > 0 && !r.bad; n-- {
		b := make([]byte, min(r.u16(), recordLen))
		r.raw(b)
		m.records = append(m.records, b)
	}
}

// windowMsg announces a window: where its region begins, and what the initiator checks for itself before it posts.
type windowMsg struct {
	key       rdma.Key
	access    rdma.Access
	base      uint64 // address of the region's first byte
	size      uint64 // bytes of the region
	off, span uint64 // what the window may cover at most, as a part of the region
	rails     []uint32
	keys      []laneKey
}

// laneKey is the remote key of a window on one lane.
type laneKey struct {
	laneRef
	rkey uint32
}

func (m *windowMsg) bytes(w *writer) {
	w.u64(uint64(m.key))
	w.u8(uint8(m.access))
	w.u64(m.base)
	w.u64(m.size)
	w.u64(m.off)
	w.u64(m.span)
	w.u16(uint16(len(m.rails)))
	for _, k := range m.rails {
		w.u32(k)
	}
	w.u16(uint16(len(m.keys)))
	for _, k := range m.keys {
		w.u16(k.lane)
		w.u32(k.gen)
		w.u32(k.rkey)
	}
}

func (m *windowMsg) parse(r *reader) {
	m.key, m.access = rdma.Key(r.u64()), rdma.Access(r.u8())
	r.bad = r.bad || m.access != rdma.AccessWrite && m.access != rdma.AccessRead
	m.base, m.size, m.off, m.span = r.u64(), r.u64(), r.u64(), r.u64()
	for n := int(r.u16()); n > 0 && !r.bad; n-- {
		m.rails = append(m.rails, r.u32())
	}
	for n := int(r.u16()); n > 0 && !r.bad; n-- {
		m.keys = append(m.keys, laneKey{laneRef{r.u16(), r.u32()}, r.u32()})
	}
}

// maxKeys keeps a message below maxMessage.
const maxKeys = 4096

// keysMsg gives the windows' keys on a lane that came later than they.
type keysMsg struct {
	laneRef
	keys []windowKey
}

type windowKey struct {
	key  rdma.Key
	rkey uint32
}

func (m *keysMsg) bytes(w *writer) {
	w.u16(m.lane)
	w.u32(m.gen)
	w.u32(uint32(len(m.keys)))
	for _, k := range m.keys {
		w.u64(uint64(k.key))
		w.u32(k.rkey)
	}
}

func (m *keysMsg) parse(r *reader) {
	m.lane, m.gen = r.u16(), r.u32()
	for n := int(r.u32()); n > 0 && !r.bad; n-- {
		m.keys = append(m.keys, windowKey{rdma.Key(r.u64()), r.u32()})
	}
}

// revokeMsg says that a window is being fenced, or is not there. The initiator posts nothing into it any more and answers clean.
type revokeMsg struct{ key rdma.Key }

func (m *revokeMsg) bytes(w *writer) { w.u64(uint64(m.key)) }
func (m *revokeMsg) parse(r *reader) { m.key = rdma.Key(r.u64()) }

// queryMsg asks for a window that was not announced.
type queryMsg struct{ key rdma.Key }

func (m *queryMsg) bytes(w *writer) { w.u64(uint64(m.key)) }
func (m *queryMsg) parse(r *reader) { m.key = rdma.Key(r.u64()) }

// cleanMsg says that everything that was posted into a window has completed with success, and that nothing will be posted any
// more. It counts the WRITEs of each lane as they are; the target compares them with what it has received itself.
type cleanMsg struct {
	key   rdma.Key
	lanes []laneCount
}

type laneCount struct {
	laneRef
	writes uint64
}

func (m *cleanMsg) bytes(w *writer) {
	w.u64(uint64(m.key))
	w.u16(uint16(len(m.lanes)))
	for _, c := range m.lanes {
		w.u16(c.lane)
		w.u32(c.gen)
		w.u64(c.writes)
	}
}

func (m *cleanMsg) parse(r *reader) {
	m.key = rdma.Key(r.u64())
	for n := int(r.u16()); n > 0 && !r.bad; n-- {
		m.lanes = append(m.lanes, laneCount{laneRef{r.u16(), r.u32()}, r.u64()})
	}
}

// creditMsg says how many SENDs of a lane the target has taken in all.
type creditMsg struct {
	laneRef
	taken uint64
}

func (m *creditMsg) bytes(w *writer) { w.u16(m.lane); w.u32(m.gen); w.u64(m.taken) }
func (m *creditMsg) parse(r *reader) { m.lane, m.gen, m.taken = r.u16(), r.u32(), r.u64() }

type message interface{ bytes(w *writer) }

func kindOf(m message) kind {
	switch m.(type) {
	case *laneOpen:
		return kindLaneOpen
	case *laneShut:
		return kindLaneShut
	case *cleanMsg:
		return kindClean
	case *queryMsg:
		return kindQuery
	case *recordsMsg:
		return kindRecords
	case *laneReady:
		return kindLaneReady
	case *laneDead:
		return kindLaneDead
	case *windowMsg:
		return kindWindow
	case *keysMsg:
		return kindKeys
	case *revokeMsg:
		return kindRevoke
	case *creditMsg:
		return kindCredit
	}
	panic("verbs: a message without a kind")
}

// parseMessage reads the body of a message of kind k.
func parseMessage(k kind, body []byte) (message, error) {
	var m interface {
		message
		parse(r *reader)
	}
	switch k {
	case kindLaneOpen:
		m = new(laneOpen)
	case kindLaneShut:
		m = new(laneShut)
	case kindClean:
		m = new(cleanMsg)
	case kindQuery:
		m = new(queryMsg)
	case kindRecords:
		m = new(recordsMsg)
	case kindLaneReady:
		m = new(laneReady)
	case kindLaneDead:
		m = new(laneDead)
	case kindWindow:
		m = new(windowMsg)
	case kindKeys:
		m = new(keysMsg)
	case kindRevoke:
		m = new(revokeMsg)
	case kindCredit:
		m = new(creditMsg)
	default:
		return nil, violation("a message of unknown kind %d", k)
	}
	r := reader{b: body}
	m.parse(&r)
	return m, r.end("message")
}
