//go:build cgo && linux

package ibv

// #cgo noescape kv_post
// #cgo nocallback kv_post
// #cgo noescape kv_post_recv
// #cgo nocallback kv_post_recv
// #include "shim.h"
import "C"

import (
	"fmt"
	"math/bits"
	"sync"
	"syscall"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const (
	opNewQP   = "verbs queue pair"
	opConnect = "verbs connect"
	opPost    = "verbs post"
	opRecv    = "verbs post receives"
	opBind    = "verbs bind"
	opInval   = "verbs invalidate"
	opModify  = "verbs queue pair state"
	opDestroy = "verbs destroy queue pair"
)

// queuePair is a reliable connection. mu is held while C works on it, so that no call meets a destroyed one; a Post that is under
// way delays Reset and Destroy by its one crossing.
type queuePair struct {
	d      *device
	num    uint32
	config nic.QPConfig
	queues [2]int // completion queues of sends, of receives

	mu    sync.Mutex
	c     *C.struct_kv_qp // nil once destroyed
	reset bool            // in the state RESET, where some libraries queue requests that they then say they refused
	fail  error           // why the device's Close could not destroy it
}

// full is no failure of the device: completions make room.
var full = fault.New(fault.ResourceExhausted, opPost, "the queue has no room")

func (d *device) NewQP(c nic.QPConfig) (nic.QP, error) {
	if err := d.enter(opNewQP); err != nil {
		return nil, err
	}
	defer d.leave()
	most := min(d.attr.MaxQPWR, d.attr.MaxCQE/2) // twice as many sends may complete: entries
	if err := firstOf(within(opNewQP, "MaxSend", c.MaxSend, 1, most), within(opNewQP, "MaxRecv", c.MaxRecv, 0, most),
		within(opNewQP, "MaxSGE", c.MaxSGE, 1, d.attr.MaxSGE), within(opNewQP, "MaxSignaled", c.MaxSignaled, 0, c.MaxSend)); err != nil {
		return nil, err
	}
	q := &queuePair{d: d, config: c, reset: true}
	for i, n := range q.entries() {
		index, err := d.takeRoom(i, n)
		if err != nil {
			if i == 1 {
				d.giveRoom(0, q.queues[0], q.entries()[0])
			}
			return nil, err
		}
		q.queues[i] = index
	}
	capacity := C.struct_v_qp_cap{max_send_wr: C.uint32_t(c.MaxSend), max_recv_wr: C.uint32_t(c.MaxRecv), max_send_sge: C.uint32_t(c.MaxSGE),
		max_recv_sge: 1, max_inline_data: C.uint32_t(d.attr.MaxInline)}
	rc := C.kv_create_qp(d.c, C.int(q.queues[0]), C.int(q.queues[1]), capacity, &q.c)
	if rc != 0 && d.attr.MaxInline > 0 {
		capacity.max_inline_data = 0 // the one wish that may be left out
		rc = C.kv_create_qp(d.c, C.int(q.queues[0]), C.int(q.queues[1]), capacity, &q.c)
	}
	if rc != 0 {
		q.giveRooms()
		return nil, callFailed(opNewQP, "ibv_create_qp", fmt.Sprintf("%d sends of %d entries, %d receives on %s", c.MaxSend, c.MaxSGE, c.MaxRecv, d.name), syscall.Errno(rc))
	}
	q.num = uint32(q.c.qp.qp_num)
	d.mu.Lock()
	d.qps[q] = struct{}{}
	d.mu.Unlock()
	return q, nil
}

// entries is how much may complete at a time: everything that is queued when the queue pair fails, signaled or not, beside what
// completed and was not polled. (Some devices, SoftRoCE too, let go of a request's place before its completion was polled.)
func (q *queuePair) entries() [2]int {
	return [2]int{q.config.MaxSend + q.config.MaxSignaled, q.config.MaxRecv}
}

func (d *device) takeRoom(kind, n int) (int, error) {
	d.polling.Lock() // the queues are added to
	defer d.polling.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.rooms[kind]
	if index, ok := r.take(n); ok {
		return index, nil
	}
	var index, room C.int
	if rc := C.kv_add_cq(d.c, C.int(max(n, r.entries)), C.int(kind), &index, &room); rc != 0 {
		return 0, callFailed(opNewQP, "ibv_create_cq", fmt.Sprintf("%d entries on %s, which has %d queues", max(n, r.entries), d.name, d.c.cq_count), syscall.Errno(rc))
	}
	r.add(int(index), int(room))
	got, _ := r.take(n)
	return got, nil
}

func (d *device) giveRoom(kind, index, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rooms[kind].give(index, n)
}

func (q *queuePair) giveRooms() {
	for i, n := range q.entries() {
		q.d.giveRoom(i, q.queues[i], n)
	}
}

func (q *queuePair) Num() uint32 { return q.num }

// use locks the queue pair for a call; the caller unlocks mu when it got no error.
func (q *queuePair) use(op string) error {
	q.mu.Lock()
	if q.c != nil && !q.d.gone.Load() {
		return nil
	}
	gone := q.c != nil
	q.mu.Unlock()
	if gone {
		return q.d.lost(op)
	}
	return closed(op, fmt.Sprintf("queue pair %d of %s", q.num, q.d.name))
}

// post locks the queue pair for posting.
func (q *queuePair) post(op string) error {
	if err := q.use(op); err != nil {
		return err
	}
	if q.reset {
		q.mu.Unlock()
		return fault.New(fault.InvalidArgument, op, "queue pair %d of %s is not connected", q.num, q.d.name)
	}
	return nil
}

func (q *queuePair) Connect(p nic.Path, c nic.Connection) error {
	if err := q.d.enter(opConnect); err != nil {
		return err
	}
	defer q.d.leave()
	if err := q.checkConnect(p, c); err != nil {
		return err
	}
	if err := q.use(opConnect); err != nil {
		return err
	}
	defer q.mu.Unlock()
	if !q.reset {
		return fault.New(fault.InvalidArgument, opConnect, "queue pair %d is connected: it must be reset first", q.num)
	}
	hops := p.HopLimit
	if hops == 0 {
		hops = 64
	}
	a := C.struct_v_qp_attr{
		port_num: C.uint8_t(p.Port), pkey_index: C.uint16_t(p.PKeyIndex), qp_access_flags: access(c.Access & (nic.RemoteWrite | nic.RemoteRead)),
		path_mtu: C.int(bits.Len(uint(p.MTU)) - 8), dest_qp_num: C.uint32_t(c.PeerQPN), rq_psn: C.uint32_t(c.PeerPSN), sq_psn: C.uint32_t(c.PSN),
		max_dest_rd_atomic: C.uint8_t(c.ReadResp), max_rd_atomic: C.uint8_t(c.ReadInit), min_rnr_timer: C.uint8_t(c.RNRTimer),
		timeout: C.uint8_t(c.Timeout), retry_cnt: C.uint8_t(c.Retries), rnr_retry: C.uint8_t(c.RNRRetries),
		ah_attr: C.struct_v_ah_attr{dlid: C.uint16_t(p.LID), sl: C.uint8_t(p.ServiceLevel), port_num: C.uint8_t(p.Port)},
	}
	if p.Global {
		a.ah_attr.is_global = 1
		a.ah_attr.grh = C.struct_v_global_route{sgid_index: C.uint8_t(p.GIDIndex), hop_limit: C.uint8_t(hops), traffic_class: C.uint8_t(p.TrafficClass)}
		*(*[16]byte)(unsafe.Pointer(&a.ah_attr.grh.dgid)) = p.GID
	}
	for _, s := range [...]struct {
		state C.int
		name  string
		mask  C.int
	}{
		{C.V_QPS_INIT, "INIT", C.V_QP_STATE | C.V_QP_PKEY_INDEX | C.V_QP_PORT | C.V_QP_ACCESS_FLAGS},
		{C.V_QPS_RTR, "RTR", C.V_QP_STATE | C.V_QP_AV | C.V_QP_PATH_MTU | C.V_QP_DEST_QPN | C.V_QP_RQ_PSN | C.V_QP_MAX_DEST_RD_ATOMIC | C.V_QP_MIN_RNR_TIMER},
		{C.V_QPS_RTS, "RTS", C.V_QP_STATE | C.V_QP_TIMEOUT | C.V_QP_RETRY_CNT | C.V_QP_RNR_RETRY | C.V_QP_SQ_PSN | C.V_QP_MAX_QP_RD_ATOMIC},
	} {
		a.qp_state = s.state
		q.reset = false
		if rc := C.kv_modify_qp(q.d.c, q.c, &a, s.mask); rc != 0 {
			err := callFailed(opConnect, "ibv_modify_qp to "+s.name, fmt.Sprintf("queue pair %d of %s, port %d, GID %d, MTU %d", q.num, q.d.name, p.Port, p.GIDIndex, p.MTU), syscall.Errno(rc))
			_ = q.toReset() // so that another path may be tried
			return err
		}
	}
	return nil
}

func (q *queuePair) checkConnect(p nic.Path, c nic.Connection) error {
	mtu := fault.Invalid(opConnect, "MTU", "%d is none of 256, 512, 1024, 2048, 4096", p.MTU)
	if p.MTU >= 256 && p.MTU <= 4096 && p.MTU&(p.MTU-1) == 0 {
		mtu = nil
	}
	at := q.d.attr
	const psns = 1<<24 - 1
	return firstOf(mtu, within(opConnect, "Port", p.Port, 1, q.d.ports), within(opConnect, "GIDIndex", p.GIDIndex, 0, 255), within(opConnect, "ServiceLevel", int(p.ServiceLevel), 0, 15),
		within(opConnect, "PeerQPN", int(c.PeerQPN), 0, psns), within(opConnect, "PeerPSN", int(c.PeerPSN), 0, psns), within(opConnect, "PSN", int(c.PSN), 0, psns),
		within(opConnect, "ReadInit", c.ReadInit, 0, at.MaxReadInit), within(opConnect, "ReadResp", c.ReadResp, 0, at.MaxReadResp),
		within(opConnect, "Timeout", c.Timeout, 1, 31), within(opConnect, "Retries", c.Retries, 0, 6), within(opConnect, "RNRTimer", c.RNRTimer, 0, 31), within(opConnect, "RNRRetries", c.RNRRetries, 0, 6))
}

// posted types a batch's end; count is what was asked for.
func (q *queuePair) posted(op, call string, p C.struct_kv_posted) (int, error) {
	switch errno := syscall.Errno(p.err); errno {
	case 0:
		return int(p.n), nil
	case syscall.ENOMEM:
		return int(p.n), full
	case syscall.EINVAL:
		return int(p.n), fault.New(fault.InvalidArgument, op, "request %d of the batch: unknown operation, or entries beyond the list or more than %d", p.n, q.config.MaxSGE)
	default:
		return int(p.n), callFailed(op, call, fmt.Sprintf("queue pair %d of %s", q.num, q.d.name), errno)
	}
}

func (q *queuePair) Post(wrs []nic.WR, sges []nic.SGE) (int, error) {
	if err := q.post(opPost); err != nil {
		return 0, err
	}
	defer q.mu.Unlock()
	p := C.kv_post(q.c, (*C.struct_kv_wr)(unsafe.Pointer(unsafe.SliceData(wrs))), C.uint32_t(len(wrs)),
		(*C.struct_v_sge)(unsafe.Pointer(unsafe.SliceData(sges))), C.uint32_t(len(sges)))
	return q.posted(opPost, "ibv_post_send", p)
}

func (q *queuePair) PostRecv(ids []uint64, sges []nic.SGE) (int, error) {
	if len(ids) != len(sges) {
		return 0, fault.Invalid(opRecv, "ids", "%d for %d entries: there is one of each", len(ids), len(sges))
	}
	if err := q.post(opRecv); err != nil {
		return 0, err
	}
	defer q.mu.Unlock()
	p := C.kv_post_recv(q.c, (*C.uint64_t)(unsafe.Pointer(unsafe.SliceData(ids))), (*C.struct_v_sge)(unsafe.Pointer(unsafe.SliceData(sges))), C.uint32_t(len(ids)))
	return q.posted(opRecv, "ibv_post_recv", p)
}

func (q *queuePair) Bind(id uint64, w nic.Window, mr nic.MR, addr, length uint64, a nic.Access) (uint32, error) {
	win, ok := w.(*window)
	reg, ok2 := mr.(*region)
	if !ok || !ok2 || win.d != q.d || reg.d != q.d {
		return 0, fault.Invalid(opBind, "window", "window and registration must be of device %s", q.d.name)
	}
	if err := q.post(opBind); err != nil {
		return 0, err
	}
	defer q.mu.Unlock()
	win.mu.Lock()
	defer win.mu.Unlock()
	reg.mu.Lock()
	defer reg.mu.Unlock()
	if win.c == nil || reg.c == nil {
		return 0, closed(opBind, "the window or its registration")
	}
	rc := C.kv_bind(q.c, C.uint64_t(id), win.c, reg.c, C.uint64_t(addr), C.uint64_t(length), access(a))
	if rc != 0 {
		_, err := q.posted(opBind, "bind", C.struct_kv_posted{err: rc})
		return 0, err
	}
	return uint32(win.c.rkey), nil
}

func (q *queuePair) Invalidate(id uint64, rkey uint32) error {
	if err := q.post(opInval); err != nil {
		return err
	}
	defer q.mu.Unlock()
	_, err := q.posted(opInval, "local invalidate", C.struct_kv_posted{err: C.kv_invalidate(q.c, C.uint64_t(id), C.uint32_t(rkey))})
	return err
}

func (q *queuePair) Fail() error {
	if err := q.d.enter(opModify); err != nil {
		return err
	}
	defer q.d.leave()
	if err := q.use(opModify); err != nil {
		return err
	}
	defer q.mu.Unlock()
	return q.modify(C.V_QPS_ERR, "ERR")
}

func (q *queuePair) Reset() error {
	if err := q.d.enter(opModify); err != nil {
		return err
	}
	defer q.d.leave()
	if err := q.use(opModify); err != nil {
		return err
	}
	defer q.mu.Unlock()
	return q.toReset()
}

func (q *queuePair) toReset() error {
	if err := q.modify(C.V_QPS_RESET, "RESET"); err != nil {
		return err
	}
	q.reset = true
	q.d.purge(q.num, q.queues[0], q.queues[1])
	return nil
}

func (q *queuePair) modify(state C.int, name string) error {
	a := C.struct_v_qp_attr{qp_state: state}
	if rc := C.kv_modify_qp(q.d.c, q.c, &a, C.V_QP_STATE); rc != 0 {
		return callFailed(opModify, "ibv_modify_qp to "+name, fmt.Sprintf("queue pair %d of %s", q.num, q.d.name), syscall.Errno(rc))
	}
	return nil
}

// Destroy may be tried again after it failed.
func (q *queuePair) Destroy() error {
	q.d.gate.RLock()
	defer q.d.gate.RUnlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.c == nil {
		return q.fail
	}
	if rc := C.kv_destroy_qp(q.d.c, q.c); rc != 0 {
		return callFailed(opDestroy, "ibv_destroy_qp", fmt.Sprintf("queue pair %d of %s", q.num, q.d.name), syscall.Errno(rc))
	}
	q.c = nil
	q.d.purge(q.num, q.queues[0], q.queues[1])
	q.giveRooms()
	q.d.mu.Lock()
	delete(q.d.qps, q)
	q.d.mu.Unlock()
	return nil
}

// end is what the device's Close does with a queue pair that is left.
func (q *queuePair) end(refused func(string, syscall.Errno)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if rc := C.kv_destroy_qp(q.d.c, q.c); rc != 0 {
		q.fail = callFailed(opDestroy, "ibv_destroy_qp", "the device was closed", syscall.Errno(rc))
		refused("ibv_destroy_qp", syscall.Errno(rc))
	}
	q.c = nil
}
