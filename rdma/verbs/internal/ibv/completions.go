//go:build cgo && linux

package ibv

// #cgo noescape kv_poll
// #cgo nocallback kv_poll
// #cgo noescape kv_purge
// #cgo nocallback kv_purge
// #include "shim.h"
import "C"

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

const (
	opNext = "verbs completions"
	// batch is how many completions a crossing brings at most, and spinSlice how long it looks: Reset and Destroy wait for it.
	batch     = 64
	spinSlice = 50 * time.Microsecond
)

// poll is one crossing.
func (d *device) poll(dst []nic.Completion, spin time.Duration) (int, error) {
	d.polling.Lock()
	defer d.polling.Unlock()
	if len(d.kept) > 0 {
		n := copy(dst, d.kept)
		d.kept = d.kept[:copy(d.kept, d.kept[n:])]
		return n, nil
	}
	n := C.kv_poll(d.c, (*C.struct_kv_completion)(unsafe.Pointer(unsafe.SliceData(dst))), C.int(min(len(dst), batch)), C.uint64_t(spin))
	if n < 0 {
		return 0, callFailed(opNext, "ibv_poll_cq", d.name, syscall.Errno(-n))
	}
	return int(n), nil
}

func (d *device) Next(dst []nic.Completion, spin, sleep time.Duration) (int, error) {
	if err := d.enter(opNext); err != nil {
		return 0, err
	}
	defer d.leave()
	if len(dst) == 0 {
		return 0, nil
	}
	n, err := d.poll(dst, 0)
	if n > 0 || err != nil || d.wasWoken() {
		return n, err
	}
	if spin > 0 {
		start := time.Now()
		for left := spin; left > 0; left = spin - time.Since(start) {
			if n, err = d.poll(dst, min(left, spinSlice)); n > 0 || err != nil || d.wasWoken() {
				return n, err
			}
			if d.closed.Load() {
				return 0, closed(opNext, "device "+d.name)
			}
		}
	}
	if sleep <= 0 {
		return 0, nil
	}
	return d.wait(dst, sleep)
}

// wait asks for completion events, looks once more, because what came before that makes none, and sleeps.
func (d *device) wait(dst []nic.Completion, sleep time.Duration) (int, error) {
	until := time.Now().Add(sleep)
	for {
		d.polling.Lock()
		rc := C.kv_arm(d.c)
		d.polling.Unlock()
		if rc != 0 {
			return 0, callFailed(opNext, "ibv_req_notify_cq", d.name, syscall.Errno(rc))
		}
		n, err := d.poll(dst, 0)
		if n > 0 || err != nil {
			return n, err
		}
		t := unix.NsecToTimespec(int64(max(time.Until(until), 0)))
		got, err := unix.Ppoll(d.sleep[:], &t, nil)
		switch {
		case d.closed.Load():
			return 0, closed(opNext, "device "+d.name)
		case d.gone.Load():
			return 0, d.lost(opNext)
		case err == unix.EINTR:
		case err != nil:
			return 0, callFailed(opNext, "ppoll", d.name, err.(syscall.Errno))
		case d.sleep[1].Revents != 0:
			d.takeWake()
			return d.poll(dst, 0) // also what Reset or Destroy put aside
		case d.sleep[0].Revents&^unix.POLLIN != 0:
			return 0, callFailed(opNext, "ppoll", "completion channel of "+d.name, syscall.EIO)
		case got == 0:
			return 0, nil
		}
	}
}

// Wake sets the flag for a spinning Next and the descriptor for a sleeping one.
func (d *device) Wake() {
	if d.woken.Swap(true) {
		return // whoever set it writes the descriptor
	}
	d.gate.RLock() // Close closes the descriptor
	signal(d.wakeFD)
	d.gate.RUnlock()
}

func (d *device) wasWoken() bool {
	if !d.woken.Load() {
		return false
	}
	d.takeWake()
	return true
}

// takeWake undoes Wake, the descriptor first: a Wake in between then finds the flag set, and the Next that returns now is for both.
// One that set the flag and writes the descriptor only after this makes a later Next return too, which does no harm.
func (d *device) takeWake() {
	drain(d.wakeFD)
	d.woken.Store(false)
}

// purge takes a queue pair's entries out of its completion queues and keeps the others' for Next. The queue pair makes no more.
func (d *device) purge(qpn uint32, queues ...int) {
	var buf [batch]nic.Completion
	d.polling.Lock()
	defer d.polling.Unlock()
	keep := d.kept[:0]
	for _, c := range d.kept {
		if c.QPN != qpn {
			keep = append(keep, c)
		}
	}
	d.kept = keep
	for _, q := range queues {
		// Others may complete all the while: a whole queue is enough.
		for left := int(d.c.cqs[q].cq.cqe); left > 0; {
			var kept C.int
			n := C.kv_purge(d.c, C.int(q), C.uint32_t(qpn), (*C.struct_kv_completion)(unsafe.Pointer(&buf[0])), batch, &kept)
			d.kept = append(d.kept, buf[:kept]...)
			if n <= 0 {
				break // empty, or it cannot be polled, which Next says
			}
			left -= int(n)
		}
	}
	if len(d.kept) > 0 {
		d.woken.Store(true)
		signal(d.wakeFD)
	}
}
