package tcp

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// directLen is the largest operation that Post writes to the socket itself when the lane is idle: waking the lane's
// writer costs more than the copy.
const directLen = 256 << 10

// direct picks, when one small operation is all that an idle lane has, that operation for sendNow. mu is held.
func (i *initiator) direct() *op {
	for _, l := range i.lanes {
		o := l.queue.head
		if l.busy || o == nil || o.next != nil || len(o.ranges) > maxCount || o.total > directLen {
			continue
		}
		if !i.crew.join(1) {
			return nil
		}
		l.claim(o)
		l.users.Add(1) // not yet ended, so the lane's goroutines still hold it
		return o
	}
	return nil
}

// claim takes the lane's sender for o, the head of its queue. mu is held.
func (l *initLane) claim(o *op) {
	l.queue.remove(o)
	o.holders++
	l.busy = true
}

// sendNow tries to send an operation of one frame without waiting. What the socket does not take is the writer's.
func (l *initLane) sendNow(o *op) {
	defer l.i.crew.leave()
	defer l.unuse()
	if !l.build(o) {
		l.settle(o, nil)
		return
	}
	done, err := l.tx.flush(false)
	if done || err != nil {
		l.settle(o, err)
		return
	}
	l.i.mu.Lock()
	l.resume = o
	l.wake.Signal()
	l.i.mu.Unlock()
}

// write is the lane's writer goroutine.
func (l *initLane) write() {
	i := l.i
	defer i.crew.leave()
	defer l.unuse()
	for {
		i.mu.Lock()
		for i.ended == 0 && l.resume == nil && (l.busy || l.queue.head == nil) {
			l.wake.Wait()
		}
		if i.ended != 0 {
			i.mu.Unlock()
			return
		}
		o, begun := l.resume, l.resume != nil
		if begun {
			l.resume = nil
		} else {
			o = l.queue.head
			l.claim(o)
		}
		i.mu.Unlock()
		var err error
		for more := begun || l.build(o); more && err == nil; more = err == nil && l.build(o) {
			_, err = l.tx.flush(true)
			if l.tx.status != 0 {
				break
			}
		}
		l.settle(o, err)
	}
}

// settle gives the sender back after o's last frame, or the first that failed.
func (l *initLane) settle(o *op, err error) {
	i := l.i
	i.mu.Lock()
	faulted := o.pending && l.tx.status == fault.MemoryFault
	if faulted {
		i.giveUp(o, fault.MemoryFault)
		i.flush()
	}
	o.holders--
	o.release()
	l.busy = false
	if l.queue.head != nil {
		l.wake.Signal()
	}
	i.mu.Unlock()
	if faulted {
		i.box.hand()
	}
	if err != nil {
		i.fail(err)
	}
}

// build makes o's next frame; false when there is none or o has completed meanwhile.
func (l *initLane) build(o *op) bool {
	l.tx.status = 0
	if o.started && o.sent == o.total {
		return false
	}
	h := header{kind: kindWrite, seq: o.seq, key: o.key, tag: o.tag, total: o.total, offset: o.sent}
	read := o.kind == rdma.OpRead
	limit := uint64(maxPayload)
	if read {
		h.kind, limit = kindRequest, ^uint64(0) // a request names any number of bytes
	}
	var sum uint64
	c := o.out
	n := 0
	for ; n < maxCount && sum < limit && o.sent+sum < o.total; n++ {
		x := o.step(&c, limit-sum)
		desc{x.Remote, x.Len}.put(l.tx.ctl[headerLen+n*descLen:])
		sum += x.Len
	}
	h.count = uint16(n)
	if !read {
		h.payload = uint32(sum)
	}
	h.put(l.tx.ctl)
	l.tx.begin(headerLen+n*descLen, o)
	if !read {
		l.tx.from(o.region)
		for left := sum; left > 0; {
			x := o.step(&o.out, left)
			l.tx.add(o.region.base+uintptr(x.Local), x.Len)
			left -= x.Len
		}
		l.tx.seal()
	}
	o.out = c
	o.sent += sum
	return o.mayStart(o.sent == o.total)
}

// mayStart records that a frame goes out, unless the operation is over.
func (o *op) mayStart(last bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.started = true
	o.lastSent = o.lastSent || last
	return !o.done
}
