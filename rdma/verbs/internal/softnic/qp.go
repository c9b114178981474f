package softnic

import (
	"sync/atomic"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

type state uint8

const (
	stateReset state = iota
	stateRTS
	stateError
	stateDestroyed
)

type op uint8

const (
	opWrite op = iota + 1
	opRead
	opSend
	opBind
	opInvalidate
)

// wqe is a request in the send queue.
type wqe struct {
	id, remote uint64
	rkey       uint32
	op         op
	signaled   bool
	sent       bool       // READ: its request is out, and counted
	done       bool       // Bind, Invalidate
	status     nic.Status // what is wrong with it on this side
	raw        uint8
	sges       []nic.SGE
	length     uint64
	psn        uint32 // of its first packet
	packets    uint32
	got        uint32 // READ: answers placed

	// Bind: the new window.
	w      *window
	m      *mr
	access nic.Access
}

type rqe struct {
	id  uint64
	sge [1]nic.SGE
}

// qp is a queue pair; it implements nic.QP. Everything but the two counters is under the fabric's lock.
type qp struct {
	a      *Adapter
	d      *device
	f      *Fabric
	num    uint32
	conf   nic.QPConfig
	state  state
	queued bool // it is in the fabric's list of turns

	path   nic.Path
	conn   nic.Connection
	ownGID [16]byte
	gid    nic.GIDType
	ownLID uint16
	mtu    uint64
	wire   *Wire // to the peer, nil where there is no way, as of routes
	routes uint64

	// Places in the queues that are free again, counted from the connection on; cq sets them.
	sendFree, recvFree atomic.Uint64

	requester
	responder
}

func newQP(d *device, c nic.QPConfig, num uint32) *qp {
	q := &qp{a: d.a, d: d, f: d.f, num: num, conf: c}
	q.sq = make([]wqe, c.MaxSend)
	sges := make([]nic.SGE, c.MaxSend*c.MaxSGE)
	for i := range q.sq {
		q.sq[i].sges = sges[i*c.MaxSGE : i*c.MaxSGE : (i+1)*c.MaxSGE]
	}
	q.rq = make([]rqe, c.MaxRecv)
	return q
}

func (q *qp) Num() uint32 { return q.num }

// may says why a call cannot be made; the lock is held.
func (q *qp) may(call, verb string) error {
	if q.state == stateDestroyed {
		return fault.New(fault.Closed, verb, "the queue pair was destroyed")
	}
	return q.d.may(call, verb)
}

func (q *qp) Connect(p nic.Path, c nic.Connection) error {
	const verb = "ibv_modify_qp"
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("Connect", verb); err != nil {
		return err
	}
	if q.state != stateReset {
		return fault.New(fault.Internal, verb, "the queue pair is not in RESET: EINVAL")
	}
	if p.Port < 1 || p.Port > len(q.a.conf.Ports) {
		return fault.Invalid(verb, "port", "%d, allowed 1 to %d", p.Port, len(q.a.conf.Ports))
	}
	port := q.a.at(p.Port)
	if port.LinkLayer == nic.Ethernet && !p.Global {
		return fault.Invalid(verb, "global", "must be true on Ethernet")
	}
	if p.Global {
		found := false
		for _, g := range port.GIDs {
			if g.Index == p.GIDIndex {
				q.ownGID, q.gid, found = g.GID, g.Type, true
			}
		}
		if !found {
			return fault.Invalid(verb, "gid_index", "%d is not in use", p.GIDIndex)
		}
	}
	switch p.MTU {
	case 256, 512, 1024, 2048, 4096:
	default:
		return fault.Invalid(verb, "mtu", "%d, allowed 256, 512, 1024, 2048 and 4096", p.MTU)
	}
	if p.MTU > port.MTU {
		return fault.Invalid(verb, "mtu", "%d, allowed up to %d on this port", p.MTU, port.MTU)
	}
	for _, x := range []struct {
		field       string
		value, most int
	}{{"psn", int(c.PSN), psnMask}, {"peer_psn", int(c.PeerPSN), psnMask}, {"read_init", c.ReadInit, q.a.conf.MaxReadInit}, {"read_resp", c.ReadResp, q.a.conf.MaxReadResp},
		{"timeout", c.Timeout, 31}, {"retries", c.Retries, 7}, {"rnr_timer", c.RNRTimer, 31}, {"rnr_retries", c.RNRRetries, 7}} {
		if x.value < 0 || x.value > x.most {
			return fault.Invalid(verb, x.field, "%d, allowed 0 to %d", x.value, x.most)
		}
	}
	q.path, q.conn, q.ownLID, q.mtu, q.routes = p, c, port.LID, uint64(p.MTU), 0
	q.startRequester()
	q.startResponder()
	q.state = stateRTS
	return nil
}

// startOver forgets everything that the queues held, completions too; the lock is held.
func (q *qp) startOver() {
	q.a.flush()
	q.d.cq.purge(q)
	q.startRequester()
	q.startResponder()
}

func (q *qp) Reset() error {
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("Reset", "ibv_modify_qp"); err != nil {
		return err
	}
	q.state = stateReset
	q.startOver()
	return nil
}

func (q *qp) Destroy() error {
	q.f.lock()
	defer q.f.unlock()
	if q.state == stateDestroyed {
		return nil
	}
	if err := q.may("Destroy", "ibv_destroy_qp"); err != nil {
		return err
	}
	q.destroy()
	return nil
}

func (q *qp) destroy() {
	q.state = stateDestroyed
	q.startOver()
	q.d.entries -= q.conf.MaxSignaled + q.conf.MaxRecv
	delete(q.a.qps, q.num)
}

// forget stops a queue pair of a device that is gone: nothing completes any more.
func (q *qp) forget() {
	q.state = stateError
	q.deadline, q.stalled = 0, 0
}

func (q *qp) Fail() error {
	q.f.lock()
	defer q.f.unlock()
	if err := q.may("Fail", "ibv_modify_qp"); err != nil {
		return err
	}
	q.a.flush()
	if q.state == stateRTS {
		q.toError(nic.Flushed)
	}
	q.state = stateError
	return nil
}

// toError ends everything queued: the oldest request of the send queue with status, the rest flushed.
func (q *qp) toError(status nic.Status) {
	q.state = stateError
	q.deadline, q.stalled = 0, 0
	for ; q.head < q.tail; q.head++ {
		w := &q.sq[q.head%uint64(len(q.sq))]
		raw := uint8(0)
		if status != nic.Flushed {
			raw = w.raw
		}
		q.d.cq.push(cqe{Completion: nic.Completion{ID: w.id, QPN: q.num, Status: status, Raw: raw}, q: q, place: q.head + 1})
		status = nic.Flushed
	}
	q.cursor = q.tail
	for ; q.recvHead < q.recvTail; q.recvHead++ {
		q.complete(&q.rq[q.recvHead%uint64(len(q.rq))], 0, nic.Flushed)
	}
	q.out, q.inMessage = q.out[:0], false
}

func (q *qp) fatal(text string) {
	q.d.events.push(nic.Event{Kind: nic.QPFatal, QPN: q.num, Port: q.path.Port, Text: text})
}

// hears reports whether a packet comes from the peer of the connection as it is now. Of an earlier connection with the same peer
// it cannot tell.
func (q *qp) hears(p *packet) bool {
	if q.state != stateRTS || p.srcQPN != q.conn.PeerQPN || q.a.removed || !q.a.at(q.path.Port).Active {
		return false
	}
	if q.path.Global {
		return p.srcGID == q.path.GID
	}
	return p.srcLID == q.path.LID
}

// emit sends a packet to the peer, as long as there is a way.
func (q *qp) emit(p *packet, now int64) {
	if q.routes != q.f.routes {
		q.routes, q.wire = q.f.routes, q.f.route(q)
	}
	if q.wire == nil {
		q.f.recycle(p)
		return
	}
	p.srcGID, p.srcLID, p.srcQPN, p.dstQPN = q.ownGID, q.ownLID, q.num, q.conn.PeerQPN
	q.wire.send(p, now)
}

// route finds the wire to the peer's address: from a port that is up to one that is up and in the same subnet.
func (f *Fabric) route(q *qp) *Wire {
	own := q.a.at(q.path.Port)
	if !own.Active || q.a.removed {
		return nil
	}
	for _, h := range f.hosts {
		for _, a := range h.order {
			for i := range a.conf.Ports {
				p := &a.conf.Ports[i]
				if a.removed || !p.Active || p.LinkLayer != own.LinkLayer {
					continue
				}
				if !q.path.Global {
					if p.LID == q.path.LID {
						return f.wire(q.a, a)
					}
					continue
				}
				for _, g := range p.GIDs {
					if g.GID == q.path.GID && g.Type == q.gid && sameSubnet(q.ownGID, g.GID) {
						return f.wire(q.a, a)
					}
				}
			}
		}
	}
	return nil
}

// sameSubnet compares what is before the host's part: 24 bits of a v4-mapped address, 64 of another.
func sameSubnet(a, b [16]byte) bool {
	n := 8
	if [12]byte(a[:12]) == [12]byte{10: 0xff, 11: 0xff} {
		n = 15
	}
	return string(a[:n]) == string(b[:n])
}

// timeout is the time until a retry; 0: for ever.
func (q *qp) timeout() int64 {
	if q.conn.Timeout == 0 {
		return 0
	}
	return 4096 << q.conn.Timeout
}

// rnrDelay is what a code of the receiver-not-ready timer means.
func rnrDelay(code uint8) time.Duration {
	us := [32]int64{655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840, 5120, 7680, 10240, 15360, 20480,
		30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680, 491520}
	return time.Duration(us[code&31]) * time.Microsecond
}
