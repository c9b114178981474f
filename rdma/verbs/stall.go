package verbs

import "time"

// A device below which nothing moves may neither complete nor fail a request: a paused port counts no retries for what it has not
// sent, and rdma_rxe waits without end for a network device that takes nothing, or that has got a smaller MTU than its packets. So a lane
// on which nothing has completed for long is ended here. That it was only slow costs the work again, so the time doubles until something
// comes through.

// leastStall is for how long at least nothing must have completed; the retries of a healthy device take less by far.
const leastStall = 4 * time.Second

// mostStalls bounds the doubling.
const mostStalls = 5

// stallAfter is four times what a device takes until it gives an unanswered packet up. The options may be wrong still.
func (o *Options) stallAfter() time.Duration {
	const unit = 4096 * time.Nanosecond
	return max(leastStall, 4*time.Duration(o.Retries+1)*(unit<<min(max(o.Timeout, 0), 31)))
}

// stalled: the device has had requests of the lane for too long.
func (l *initLane) stalled(now time.Time) bool {
	return l.qp != nil && l.state != laneEnding && l.posted > l.done && now.Sub(l.moved) > l.i.p.opt.stall<<l.rail.stalls
}

// posting: the lane gives requests to its device.
func (l *initLane) posting() {
	if l.posted == l.done {
		l.moved = time.Now()
	}
	i := l.i
	if i.watching {
		return
	}
	i.watching = true
	every := i.p.opt.stall / 4
	if i.watchdog == nil {
		i.watchdog = time.AfterFunc(every, i.lookForStalls)
	} else {
		i.watchdog.Reset(every)
	}
}

// lookForStalls ends the lanes that are stalled, and looks again as long as devices have requests.
func (i *initiator) lookForStalls() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.watching = false
	if i.ended != 0 {
		return
	}
	now, busy := time.Now(), false
	for _, l := range i.lanes {
		if l.stalled(now) {
			i.p.opt.Logger.Warn("lane stalled", "session", uint64(i.id), "lane", int(l.index), "device", l.rail.near.dev.info.Name, "for", now.Sub(l.moved))
			l.rail.suspect, l.rail.late = true, true
			i.endLane(l, false)
		}
		busy = busy || l.qp != nil && l.posted > l.done
	}
	for _, r := range i.rails {
		if r.late {
			r.late, r.stalls = false, min(r.stalls+1, mostStalls)
		}
	}
	i.pump()
	i.flush()
	if busy && !i.watching {
		i.watching = true
		i.watchdog.Reset(i.p.opt.stall / 4)
	}
}
