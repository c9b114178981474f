package verbs

import (
	"slices"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// creditEvery is after how many records the initiator is told that they were taken.
const creditEvery = recvDepth / 4

// targetLane is a lane's queue pair at the target: of one generation at a time. The target's lock guards it.
type targetLane struct {
	t       *target
	index   uint16
	gen     uint32
	rail    *rail
	up      bool
	opening bool // connect is at work on this generation
	refused bool // the last generation, which was logged
	qp      nic.QP
	qpn     uint32
	slab    *slab
	taken   uint64 // records in all
	told    uint64 // of these, the initiator knows
	lastID  uint64
	flying  map[uint64]request // bindings and invalidations that the device works on
	todo    []request          // and those that wait for room
	fresh   []windowKey        // keys that were bound after their window was announced
	recvIDs []uint64           // scratch
	recvSGE []nic.SGE
}

// request is a binding or its end.
type request struct {
	w   *window
	end bool
}

// maxFlying bounds the requests in the lane's send queue.
const maxFlying = sendDepth / 2

func (l *targetLane) ref() laneRef { return laneRef{l.index, l.gen} }

// lane finds a lane by number and generation; nil: it is not up.
func (t *target) lane(r laneRef) *targetLane {
	if int(r.lane) >= len(t.lanes) {
		return nil
	}
	if l := t.lanes[r.lane]; l != nil && l.up && l.gen == r.gen {
		return l
	}
	return nil
}

// openLane makes a queue pair as the initiator asks. That of the generation before ends first: its packets are dead before the
// initiator may post again what it had posted there.
func (t *target) openLane(m *laneOpen) error {
	if m.lane >= maxLanes {
		return violation("lane %d, want 0 to %d", m.lane, maxLanes-1)
	}
	for int(m.lane) >= len(t.lanes) {
		t.lanes = append(t.lanes, nil)
	}
	l := t.lanes[m.lane]
	if l == nil {
		l = &targetLane{t: t, index: m.lane}
		t.lanes[m.lane] = l
	} else if m.gen <= l.gen {
		return violation("generation %d of lane %d, which is at %d", m.gen, m.lane, l.gen)
	}
	if l.up {
		t.endLane(l, nil)
	}
	l.gen, l.taken, l.opening = m.gen, 0, true
	if err := l.open(*m); err != nil {
		l.refuse(err)
	}
	return nil
}

// refuse tells the initiator why there is no queue pair.
func (l *targetLane) refuse(err error) {
	l.opening = false
	if !l.refused { // the initiator goes on trying
		l.t.p.opt.Logger.Warn("lane not opened", "session", uint64(l.t.id), "lane", int(l.index), "error", err)
	}
	l.refused = true
	l.t.side.send(&laneDead{laneRef: l.ref(), code: fault.CodeOf(err), text: err.Error()})
}

// open makes the queue pair. To connect it the kernel may have to find the peer on its network first, which takes seconds where
// that is down, and no fence may wait for it: so it happens outside of the session's lock. Until laneReady nobody knows of it.
func (l *targetLane) open(m laneOpen) error {
	t := l.t
	if t.broken != nil {
		return t.broken
	}
	if int(m.rail) >= len(t.p.rails) {
		return violation("rail %d, want 0 to %d", m.rail, len(t.p.rails)-1)
	}
	r := t.p.rails[m.rail]
	if err := r.dev.usable(); err != nil {
		return err
	}
	if !r.dev.spawn(func() { l.connect(&m, r) }) {
		return errClosed("queue pair")
	}
	return nil
}

// connect makes the queue pair and announces it, if it is still wanted then.
func (l *targetLane) connect(m *laneOpen, r *rail) {
	t, d := l.t, r.dev
	qp, s, ready, err := l.make(m, r)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended != 0 || l.gen != m.gen || !l.opening {
		if err == nil {
			t.discard(d, qp, s)
		}
		return
	}
	if err != nil {
		l.refuse(err)
		return
	}
	l.rail, l.qp, l.qpn, l.slab, l.up, l.opening = r, qp, qp.Num(), s, true, false
	l.refused = false
	l.told, l.lastID, l.flying, l.todo, l.fresh = 0, 0, map[uint64]request{}, nil, nil
	t.side.send(ready)
	if d.windows {
		for _, w := range t.windows {
			if w.fence == nil && l.up {
				w.bindOn(l)
			}
		}
	}
	t.flush()
}

// make gives a connected queue pair with its receives, and what the initiator is told of it.
func (l *targetLane) make(m *laneOpen, r *rail) (nic.QP, *slab, *laneReady, error) {
	t, d := l.t, r.dev
	port, err := d.port(r.port)
	if err != nil {
		return nil, nil, nil, err
	}
	path, err := t.p.path(r, &port, m.toGID, m.fromGID, m.fromLID, int(m.mtu))
	if err != nil {
		return nil, nil, nil, err
	}
	s, err := d.takeSlab()
	if err != nil {
		return nil, nil, nil, err
	}
	qp, err := d.newQP(l)
	if err != nil {
		d.giveSlab(s)
		return nil, nil, nil, err
	}
	c := t.p.connection(d)
	c.PeerQPN, c.PeerPSN, c.PSN = m.qpn, m.psn, randomPSN()
	c.Access = nic.RemoteWrite | nic.RemoteRead
	c.ReadResp = max(1, min(int(m.readInit), d.attr.MaxReadResp))
	if err = qp.Connect(path, c); err == nil {
		ids, sges := make([]uint64, d.depth.MaxRecv), make([]nic.SGE, d.depth.MaxRecv)
		for k := range ids {
			ids[k], sges[k] = uint64(k), s.receive(k)
		}
		_, err = qp.PostRecv(ids, sges)
	}
	if err != nil {
		t.mu.Lock()
		t.discard(d, qp, s)
		t.mu.Unlock()
		return nil, nil, nil, err
	}
	return qp, s, &laneReady{laneRef: laneRef{m.lane, m.gen}, qpn: qp.Num(), psn: c.PSN, mtu: uint16(path.MTU), readResp: uint16(c.ReadResp), receives: uint16(d.depth.MaxRecv)}, nil
}

// discard ends a queue pair that nobody was told of.
func (t *target) discard(d *device, qp nic.QP, s *slab) {
	if err := d.retire(qp, true); err != nil {
		if t.broken == nil && !d.ending() {
			t.broken = fault.Wrap(fault.Internal, "fence", err)
		}
		return
	}
	d.giveSlab(s)
}

// receive queues the receives of the slots in recvIDs again.
func (l *targetLane) receive() error {
	l.recvSGE = l.recvSGE[:0]
	for _, id := range l.recvIDs {
		l.recvSGE = append(l.recvSGE, l.slab.receive(int(id)))
	}
	_, err := l.qp.PostRecv(l.recvIDs, l.recvSGE)
	l.recvIDs = l.recvIDs[:0]
	return err
}

// endLane ends a lane's queue pair: after it no packet to it lands. The initiator is told, with the reason where there is one.
func (t *target) endLane(l *targetLane, why error) {
	d := l.rail.dev
	l.up = false
	if err := d.retire(l.qp, true); err == nil {
		d.giveSlab(l.slab)
	} else if t.broken == nil { // packets may still come into the slab
		t.broken = fault.Wrap(fault.Internal, "fence", err)
		t.p.opt.Logger.Error("fence failed", "session", uint64(t.id), "device", d.info.Name, "error", err)
	}
	l.qp, l.slab, l.flying, l.todo, l.fresh, l.recvIDs = nil, nil, nil, nil, nil, l.recvIDs[:0]
	for _, w := range t.windows {
		w.laneEnded(l)
	}
	if t.ended == 0 && t.side != nil {
		m := &laneDead{laneRef: l.ref(), taken: l.taken}
		if why != nil {
			m.code, m.text = fault.CodeOf(why), why.Error()
		}
		t.side.send(m)
	}
}

// deviceLost ends the lane with its device.
func (l *targetLane) deviceLost(err error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.up {
		l.t.endLane(l, err)
		l.t.flush()
	}
}

// completed takes a run of completions of the lane's queue pair.
func (l *targetLane) completed(run []nic.Completion) {
	t := l.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range run {
		c := &run[k]
		if !l.up || c.QPN != l.qpn {
			break // of a generation that has ended
		}
		switch {
		case !c.Recv && c.Status != nic.Success && c.Status != nic.Flushed && c.ID != noRequest:
			// A binding or its end: with a reason, so that the initiator takes its time before it tries again.
			t.endLane(l, fault.New(fault.Internal, "memory window", "%s on %s", c.Status, l.rail.local.Name()))
		case c.Status != nic.Success:
			// A peer that used a stale key, or that is gone. What it has under way it posts again on a new generation.
			t.p.opt.Logger.Debug("lane failed", "role", "target", "session", uint64(t.id), "lane", int(l.index), "status", c.Status.String())
			t.endLane(l, nil)
		case c.Recv:
			l.take(c)
		default:
			l.executed(c.ID)
		}
	}
	if l.up && len(l.recvIDs) > 0 {
		if err := l.receive(); err != nil {
			t.endLane(l, err)
		} else if l.taken-l.told >= creditEvery {
			l.told = l.taken
			t.side.send(&creditMsg{l.ref(), l.taken})
		}
	}
	if l.up && len(l.fresh) > 0 && len(l.flying) == 0 && len(l.todo) == 0 {
		for keys := range slices.Chunk(l.fresh, maxKeys) {
			t.side.send(&keysMsg{laneRef: l.ref(), keys: keys})
		}
		l.fresh = nil
	}
	t.flush()
}

// take reads a record: the bytes of the WRITEs it lists are in place.
func (l *targetLane) take(c *nic.Completion) {
	t := l.t
	slot := int(c.ID)
	if slot >= l.rail.dev.depth.MaxRecv || c.Bytes > recordLen {
		t.endLane(l, violation("a receive of %d bytes in slot %d", c.Bytes, slot))
		return
	}
	l.taken++
	l.recvIDs = append(l.recvIDs, c.ID)
	var err error
	if t.entries, err = parseRecord(t.entries[:0], l.slab.slot(slot)[:c.Bytes], l.gen); err != nil {
		t.endLane(l, err)
		return
	}
	for k := range t.entries {
		if w := t.windows[t.entries[k].key]; w != nil {
			w.received(l)
		}
	}
	t.arrived(t.entries)
}

// told takes the records that came in on a lane unseen, before its queue pair ended.
func (t *target) told(m *recordsMsg) error {
	if int(m.lane) >= len(t.lanes) || t.lanes[m.lane] == nil || t.lanes[m.lane].up || t.lanes[m.lane].opening || t.lanes[m.lane].gen != m.gen {
		return violation("records of lane %d, which has not just ended", m.lane)
	}
	l := t.lanes[m.lane]
	for _, b := range m.records {
		var err error
		if t.entries, err = parseRecord(t.entries[:0], b, m.gen); err != nil {
			return err
		}
		l.taken++
		t.arrived(t.entries)
	}
	return nil
}

// arrived reports the operations of which the last part has come.
func (t *target) arrived(entries []entry) {
	for k := range entries {
		e := &entries[k]
		w := t.windows[e.key]
		if w == nil {
			continue // fenced meanwhile
		}
		total := e.bytes
		if e.parts > 1 {
			a := w.parts[e.op]
			if a == nil {
				if w.parts == nil {
					w.parts = map[uint64]*assembly{}
				}
				a = &assembly{left: int(e.parts)}
				w.parts[e.op] = a
			}
			if bit := byte(1) << (e.part % 8); a.have[e.part/8]&bit == 0 {
				a.have[e.part/8] |= bit
				a.left--
				a.bytes += e.bytes
			}
			if a.left > 0 {
				continue
			}
			total = a.bytes
			delete(w.parts, e.op)
		}
		t.out = append(t.out, rdma.Event{Kind: rdma.EventArrival, Session: t.id, Bytes: total, Key: e.key, Tag: e.tag})
	}
}

// queue gives a binding or its end to the device, when it has room.
func (l *targetLane) queue(r request) {
	l.todo = append(l.todo, r)
	l.work()
}

func (l *targetLane) work() {
	for l.up && len(l.todo) > 0 && len(l.flying) < maxFlying {
		r := l.todo[0]
		l.todo = l.todo[1:]
		l.lastID++
		if err := r.w.execute(l, l.lastID, r.end); err != nil {
			l.t.p.opt.Logger.Warn("memory window failed", "session", uint64(l.t.id), "lane", int(l.index), "error", err)
			l.t.endLane(l, err)
			return
		}
		l.flying[l.lastID] = r
	}
}

// executed is the end of a binding or of an invalidation, with success.
func (l *targetLane) executed(id uint64) {
	r, ok := l.flying[id]
	if !ok {
		return
	}
	delete(l.flying, id)
	r.w.executed(l, r.end)
	l.work()
}
