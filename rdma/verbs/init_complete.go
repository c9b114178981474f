package verbs

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// completed takes a run of completions of the lane's queue pair.
func (l *initLane) completed(run []nic.Completion) {
	i := l.i
	i.mu.Lock()
	defer i.mu.Unlock()
	came := false
	for k := range run {
		c := &run[k]
		if c.QPN != l.qpn || l.qp == nil || l.state == laneEnding {
			break // of a generation that has ended
		}
		if c.Status == nic.Success {
			l.done = max(l.done, c.ID+1)
			l.batches--
			came = true
			continue
		}
		if c.Status != nic.Flushed && c.ID != noRequest {
			l.done = max(l.done, c.ID) // what was before it has succeeded
		}
		l.land()
		l.broke(c)
		break
	}
	if came {
		l.moved = time.Now()
	}
	l.land()
	i.pump()
	i.flush()
}

// land completes the parts whose requests are done.
func (l *initLane) land() {
	n := 0
	for n < len(l.flight) && l.flight[n].wr < l.done {
		p := l.flight[n].part
		n++
		if p == nil {
			l.sendsDone++
			continue
		}
		l.landed(p)
		if p.o.kind == rdma.OpWrite {
			if w := l.i.windows[p.o.key]; w != nil {
				w.count(l.ref())
			}
		}
		if len(l.i.rails) > 1 {
			l.rail.moved(p.bytes) // one rail is never compared
		}
		l.rail.stalls = 0
		p.state, p.lane = waiting, nil // in no list
		l.i.succeed(p)
	}
	l.flight = append(l.flight[:0], l.flight[n:]...)
	if l.state == laneProbing && l.sendsDone > 0 {
		l.up()
	}
}

// succeed ends a part whose bytes have moved. An operation whose parts have all moved has succeeded, whatever was wanted of it meanwhile.
func (i *initiator) succeed(p *part) {
	o := p.o
	if o.left == 1 && len(o.parts) == 1 {
		o.doomed = 0
	}
	i.partOver(p)
}

// broke is a request that failed: the queue pair is in error, and everything on it has to go another way.
func (l *initLane) broke(c *nic.Completion) {
	i := l.i
	i.p.opt.Logger.Debug("lane failed", "role", "initiator", "session", uint64(i.id), "lane", int(l.index), "status", c.Status.String(), "raw", int(c.Raw))
	culprit := l.current
	for _, f := range l.flight {
		if f.part != nil && f.part.bytes > 0 && f.part.last >= c.ID {
			culprit = f.part
			break
		}
	}
	switch c.Status {
	case nic.RetriesExceeded, nic.RNRExceeded:
		l.rail.suspect = true
		i.refuse(fault.New(fault.PeerUnreachable, "connect", "%s: %s", l.rail.name(), c.Status))
	case nic.RemoteAccess, nic.RemoteInvalid, nic.RemoteOperation, nic.LocalProtection:
		// A window that was fenced meanwhile explains it, and the news of it is on its way. What nothing explains is not tried for ever.
		if culprit != nil {
			if culprit.strikes++; culprit.strikes >= maxStrikes && culprit.o.doomed == 0 {
				culprit.o.doomed = fault.PermissionDenied
			}
		}
	}
	i.endLane(l, false)
}
