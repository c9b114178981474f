package verbs

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

type laneState uint8

const (
	laneIdle       laneState = iota // no queue pair; it is opened when its time comes
	laneOpening                     // laneOpen is sent
	laneConnecting                  // connect is at work; the queue pair is its own
	laneProbing                     // a record without entries is under way
	laneUp
	laneEnding // the queue pair has ended here; the target has not answered
)

const (
	backoffFrom = 50 * time.Millisecond
	backoffTo   = 2 * time.Second
	maxStrikes  = 3
)

// initLane is a lane's queue pair at the initiator: of one generation at a time. The session's lock guards it.
type initLane struct {
	i     *initiator
	index uint16
	gen   uint32
	rail  *initRail
	state laneState
	tried bool // counted out of initiator.trying

	qp   nic.QP
	qpn  uint32
	psn  uint32
	slab *slab

	queue       partQueue // not begun
	queuedParts int
	queuedBytes uint64
	load        uint64    // bytes queued and with the device
	current     *part     // building
	at          cursor    // of current
	left        uint64    // bytes of current that are not posted
	flight      []landing // what completes with which request
	limbo       partQueue

	posted, done uint64    // requests
	moved        time.Time // when done grew, or posted on a lane without requests
	batches      int       // posted, and not said to be complete: the last request of each is signaled
	receives     uint64    // records that the target has room for
	sent, taken  uint64    // records
	sendsDone    uint64
	backoff      time.Duration
	timer        *time.Timer
	wrs          []nic.WR // scratch
	sges         []nic.SGE
	ends         []*part
}

// landing: when request wr has completed, the part is over; nil is a record.
type landing struct {
	wr   uint64
	part *part
}

func (l *initLane) ref() laneRef { return laneRef{l.index, l.gen} }

func (i *initiator) lane(r laneRef) *initLane {
	if int(r.lane) >= len(i.lanes) || i.lanes[r.lane].gen != r.gen {
		return nil
	}
	return i.lanes[r.lane]
}

// open begins a new generation.
func (l *initLane) open() {
	i, d := l.i, l.rail.near.dev
	l.gen++
	var err error
	if l.slab == nil {
		if l.slab, err = d.takeSlab(); err != nil {
			l.failed(err)
			return
		}
	}
	if l.qp, err = d.newQP(l); err != nil {
		l.failed(err)
		return
	}
	port, err := d.port(l.rail.near.port)
	if err != nil {
		_ = d.retire(l.qp, false)
		l.qp = nil
		l.failed(err)
		return
	}
	l.qpn, l.psn = l.qp.Num(), randomPSN()
	l.posted, l.done, l.sent, l.taken, l.sendsDone, l.receives, l.batches = 0, 0, 0, 0, 0, 0, 0
	l.state = laneOpening
	i.side.send(&laneOpen{laneRef: l.ref(), rail: uint16(l.rail.far), toGID: l.rail.pair.PeerGID.GID, fromGID: l.rail.pair.LocalGID.GID,
		fromLID: port.LID, mtu: uint16(port.MTU), qpn: l.qpn, psn: l.psn, readInit: uint16(d.attr.MaxReadInit)})
}

// ready: the target's queue pair answers. This side's is connected outside of the session's lock, as the target's is.
func (l *initLane) ready(m *laneReady) {
	if l.state != laneOpening {
		return
	}
	l.state = laneConnecting
	qp, psn := l.qp, l.psn
	if !l.rail.near.dev.spawn(func() { l.connect(*m, qp, psn) }) {
		l.state = laneOpening
		l.i.endLane(l, false)
	}
}

func (l *initLane) connect(m laneReady, qp nic.QP, psn uint32) {
	i, d := l.i, l.rail.near.dev
	port, err := d.port(l.rail.near.port)
	if err == nil {
		var path nic.Path
		if path, err = i.p.path(l.rail.near, &port, l.rail.pair.LocalGID.GID, l.rail.pair.PeerGID.GID, l.rail.pair.Peer.LID, int(m.mtu)); err == nil {
			c := i.p.connection(d)
			c.PeerQPN, c.PeerPSN, c.PSN = m.qpn, m.psn, psn
			c.ReadInit = max(1, min(d.attr.MaxReadInit, int(m.readResp)))
			err = qp.Connect(path, c)
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if l.qp != qp || l.state != laneConnecting { // the lane has ended meanwhile, and left the queue pair to this goroutine
		if err := d.retire(qp, false); err != nil && !d.ending() {
			i.p.opt.Logger.Error("queue pair not ended", "session", uint64(i.id), "device", d.info.Name, "error", err)
		}
		return
	}
	l.state = laneOpening
	if err != nil {
		i.refuse(err)
		i.endLane(l, false)
	} else {
		l.connected(&m)
	}
	i.pump()
	i.flush()
}

// connected: both queue pairs answer.
func (l *initLane) connected(m *laneReady) {
	l.receives = uint64(min(m.receives, recvDepth))
	l.state = laneProbing
	if !l.rail.suspect && l.tried {
		l.up()
		return
	}
	// A record without entries shows whether packets reach the target at all: on the first generation, and where they last did not.
	l.sges = append(l.sges[:0], l.record(0))
	l.flight = append(l.flight, landing{l.posted, nil})
	l.sent++
	l.post([]nic.WR{{ID: l.posted, Op: nic.Send, Count: 1, Signaled: true}})
}

func (l *initLane) up() {
	l.state, l.backoff = laneUp, 0
	l.rail.suspect = false
	i := l.i
	i.tried(l, nil)
	if i.lost != nil {
		i.lost.Stop()
		i.lost = nil
	}
	i.retry()
}

// tried counts a lane that has come up for the first time, or not.
func (i *initiator) tried(l *initLane, err error) {
	if err != nil {
		i.refuse(err)
	}
	if l.tried {
		return
	}
	l.tried = true
	if i.trying--; i.trying == 0 {
		close(i.settled)
	}
}

func (i *initiator) refuse(err error) {
	if i.refused == nil {
		i.refused = err
	}
}

// failed: the lane could not be opened here; it is tried again later.
func (l *initLane) failed(err error) {
	l.state = laneIdle
	l.i.p.opt.Logger.Warn("lane not opened", "session", uint64(l.i.id), "lane", int(l.index), "error", err)
	l.i.tried(l, err)
	l.later()
	l.i.watchLost()
}

// later opens the lane again after a while; not on a device that is gone, which stays so until the provider is made anew.
func (l *initLane) later() {
	if l.i.ended != 0 || l.rail.near.dev.usable() != nil {
		return
	}
	l.backoff = min(max(2*l.backoff, backoffFrom), backoffTo)
	l.timer = time.AfterFunc(l.backoff, l.again)
}

func (l *initLane) again() {
	l.i.mu.Lock()
	defer l.i.mu.Unlock()
	if l.i.ended == 0 && l.state == laneIdle {
		l.open()
	}
}

func (l *initLane) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// endLane ends the lane's queue pair here. What it carried waits until the target has said that its side is dead too, or goes on
// at once where that is known.
func (i *initiator) endLane(l *initLane, known bool) {
	if l.state == laneIdle || l.state == laneEnding {
		return
	}
	d := l.rail.near.dev
	was := l.state
	if was == laneConnecting {
		// The queue pair carries nothing, and connect sees to it.
	} else if err := d.retire(l.qp, false); err != nil {
		// The device may still read the source: what it carries does not complete until somebody restarts the daemon.
		i.p.opt.Logger.Error("queue pair not ended, its operations stay pending", "session", uint64(i.id), "device", d.info.Name, "error", err)
		l.state = laneEnding
		return
	}
	l.qp, l.qpn = nil, 0
	l.state = laneEnding
	if p := l.current; p != nil {
		l.current = nil
		l.toLimbo(p)
	}
	for _, f := range l.flight {
		if f.part != nil {
			l.toLimbo(f.part)
		}
	}
	l.flight = l.flight[:0]
	for p := l.queue.head; p != nil; p = l.queue.head {
		l.dequeue(p)
		l.unload(p)
		p.state, p.lane = waiting, nil
		i.waiting.push(p)
	}
	if was == laneProbing || was == laneOpening || was == laneConnecting {
		i.tried(l, fault.New(fault.PeerUnreachable, "connect", "no answer over %s", l.rail.name()))
	}
	if i.ended != 0 {
		return
	}
	if !known {
		i.side.send(&laneShut{l.ref()})
	}
	i.watchLost()
	i.retry()
}

// toLimbo: the device is done with a part without having said what became of it.
func (l *initLane) toLimbo(p *part) {
	l.landed(p)
	p.state, p.lane = limbo, l
	l.limbo.push(p)
	if p.o.doomed != 0 {
		l.i.partOver(p)
	}
}

// landed takes a part off the device's account.
func (l *initLane) landed(p *part) {
	p.o.onDevice--
	if w := l.i.windows[p.o.key]; w != nil {
		w.onDevice--
	}
	l.unload(p)
}

func (l *initLane) enqueue(p *part) {
	l.queue.push(p)
	l.queuedParts++
	l.queuedBytes += p.bytes
}

func (l *initLane) dequeue(p *part) {
	l.queue.remove(p)
	l.queuedParts--
	l.queuedBytes -= p.bytes
}

// burden and unload keep the account of what a lane has to move.
func (l *initLane) burden(p *part) {
	if l.rail.load == 0 && len(l.i.rails) > 1 {
		l.rail.busy = time.Now()
	}
	l.load += p.bytes + partCost
	l.rail.load += p.bytes + partCost
}

func (l *initLane) unload(p *part) {
	l.load -= p.bytes + partCost
	l.rail.load -= p.bytes + partCost
}

// dead: the target's queue pair of this generation is no more, or could not be made.
func (l *initLane) dead(m *laneDead) error {
	i := l.i
	if l.state == laneIdle {
		return nil
	}
	if m.taken > l.sent {
		return violation("%d records of lane %d taken, of %d that were sent", m.taken, m.lane, l.sent)
	}
	if m.code != 0 {
		i.refuse(fault.New(m.code, "connect", "the peer refuses a lane over %s: %s", l.rail.name(), m.text))
	}
	if l.state != laneEnding {
		i.endLane(l, true)
	}
	if l.qp != nil {
		return nil // it could not be ended here
	}
	l.repeat(m.taken)
	for p := l.limbo.head; p != nil; p = l.limbo.head {
		l.limbo.remove(p)
		p.state, p.lane = waiting, nil
		i.waiting.push(p)
	}
	l.state = laneIdle
	if l.rail.suspect || m.code != 0 {
		l.later()
	} else {
		l.open()
	}
	i.retry()
	return nil
}

// repeat tells the target of records that its device has acknowledged and that it has not seen. Their slots still hold them: none is
// used again before the target has said that it was taken.
func (l *initLane) repeat(taken uint64) {
	m := &recordsMsg{laneRef: l.ref()}
	for k := taken; k < l.sendsDone; k++ {
		b := l.slab.slot(int(k % recvDepth))
		m.records = append(m.records, b[:recordSize(b)])
	}
	if len(m.records) > 0 {
		l.i.side.send(m)
	}
}

// watchLost gives the session up when no lane has been up for long.
func (i *initiator) watchLost() {
	if i.ended != 0 || i.lost != nil {
		return
	}
	for _, l := range i.lanes {
		if l.state == laneUp {
			return
		}
	}
	i.lost = time.AfterFunc(i.p.opt.LostAfter, func() {
		i.end(fault.PeerLost, fault.New(fault.PeerLost, "session", "no lane for %s", i.p.opt.LostAfter))
	})
}

func (l *initLane) carries(which func(o *op) bool) bool {
	if p := l.current; p != nil && which(p.o) {
		return true
	}
	for _, f := range l.flight {
		if f.part != nil && which(f.part.o) {
			return true
		}
	}
	return false
}

// deviceLost ends the lane with its device.
func (l *initLane) deviceLost(err error) {
	i := l.i
	i.mu.Lock()
	defer i.mu.Unlock()
	l.rail.suspect = true
	i.refuse(err)
	i.endLane(l, false)
	i.pump()
	i.flush()
}
