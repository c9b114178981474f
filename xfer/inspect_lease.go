package xfer

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

func (e *Engine) inspectLeases(k *look, tenant string, q *wire.Inspect) (info wire.InspectInfo, array []byte, err error) {
	after, err := cursor(q.After, 'l')
	if err != nil {
		return info, nil, err
	}
	var all []numbered[grant]
	e.mu.Lock()
	for id, g := range e.leases {
		if id > after && (tenant == "" || g.terms().client.info.Tenant == tenant) {
			all = append(all, numbered[grant]{id, g})
		}
	}
	e.mu.Unlock()
	var rows []wire.LeaseRow
	of, limit := sorted(all), rowLimit(q)
	for i, x := range of {
		k.found = false
		row := x.v.row(k)
		if ofMemory(q.Cache, row.Tenant, row.Memory) && (k.found || strings.HasPrefix(row.LeaseID, q.ID) || strings.HasPrefix(row.TransferID, q.ID)) {
			rows = append(rows, row)
		}
		if (len(rows) == limit || i == scanMost-1) && i+1 < len(all) {
			info.Next = cursorAt('l', x.id)
			break
		}
	}
	array, err = wire.PackRows(rows)
	return info, array, err
}

// begun is what a row says of every permission.
func (p *permit) begun(k *look, kind, memory string) wire.LeaseRow {
	row := wire.LeaseRow{LeaseID: hex16(p.grantID), Kind: kind, Tenant: p.client.info.Tenant, Memory: memory, Mode: p.mode, Blocks: len(p.blocks),
		AgeMs: ms(k.now - p.granted), Process: p.client.info.Process, Pid: p.client.info.Pid}
	if p.part != nil {
		row.Part = hex16(p.part.whole)
	}
	return row
}

// remaining is below 0 where the time is over and the end is being worked on.
func (k *look) remaining(deadline rdma.Instant) int64 {
	if deadline <= k.now {
		return -1
	}
	return ceilMillis(deadline - k.now)
}

// traceOf is the trace id in a traceparent.
func traceOf(parent string) string {
	if f := strings.Split(parent, "-"); len(f) == 4 && len(f[1]) == 32 {
		return f[1]
	}
	return ""
}

func (l *lease) row(k *look) wire.LeaseRow {
	row := l.begun(k, "write", l.cache.name)
	if !k.lock(&l.mu) {
		row.State, row.Waiting = "BUSY", busy()
		return row
	}
	defer l.mu.Unlock()
	row.Generation, row.Bytes = l.generation, l.m.Bytes()
	row.Pieces, row.Arrived = l.m.Pieces(), l.m.Arrived()
	row.RemainingMs = k.remaining(l.m.Deadline())
	moved := max(l.moved, l.granted)
	row.MovedMs = ms(k.now - moved)
	if b := l.bound; b != nil {
		row.Peer, row.Provider, row.TransferID, row.TraceID = b.ls.link.Peer().Node, b.ls.provider, b.transfer, traceOf(b.parent)
	}
	switch l.m.Phase() {
	case protocol.LeaseGranted:
		row.State, row.Waiting = "GRANTED", l.unbound(k)
	case protocol.LeaseBound:
		row.State = "BOUND"
		if missing := row.Pieces - row.Arrived; missing > 0 {
			row.Waiting = k.waits(wire.WaitPieces, fmt.Sprintf("%d of %d pieces from %s over %s", missing, row.Pieces, row.Peer, row.Provider), moved)
		} else {
			row.Waiting = k.waits(wire.WaitFin, "FIN from "+row.Peer+": every piece is here", moved)
		}
		row.Waiting.Peer = row.Peer
		if k.detail {
			row.Missing = gaps(l.m.Missing())
		}
	case protocol.LeaseFencing:
		row.State, row.Waiting = "FENCING", k.fence(row.Peer, row.Provider, l.m.Outcome(), moved)
	default:
		row.State, row.Waiting = "ENDED", k.waits(wire.WaitSettlement, "this node to write the end down and to tell it", moved)
	}
	return row
}

// fence says whose fence is waited for, and why it is made.
func (k *look) fence(peer, provider string, code fault.Code, since rdma.Instant) *wire.Waiting {
	why := "everything has arrived"
	if code != 0 {
		why = code.String()
	}
	w := k.waits(wire.WaitFence, fmt.Sprintf("the fence of %s's window by this node's provider %s (%s)", peer, provider, why), since)
	w.Peer = peer
	return w
}

// unbound says what a permission waits for that nobody has bound.
func (p *permit) unbound(k *look) *wire.Waiting {
	if pt := p.part; pt != nil {
		pt.mu.Lock()
		waiting, asked := pt.waiting, pt.asked
		pt.mu.Unlock()
		if waiting > 0 {
			w := k.waits(wire.WaitAsker, fmt.Sprintf("%s, which made the instance's lease, to say whether one of %d transfers may own it", pt.asker.node(), waiting), asked)
			w.Peer = pt.asker.node()
			return w
		}
	}
	return k.waits(wire.WaitSource, "a transfer to bind it", p.granted)
}

func (o *offer) row(k *look) wire.LeaseRow {
	kind := "read"
	if o.cache == nil {
		kind = "advertise"
	}
	row := o.begun(k, kind, o.name())
	if !k.lock(&o.mu) {
		row.State, row.Waiting = "BUSY", busy()
		return row
	}
	defer o.mu.Unlock()
	row.Bytes = o.m.Bytes()
	row.Uses, row.Used = o.m.Uses()
	row.RemainingMs = k.remaining(o.m.Deadline())
	moved := max(o.moved, o.granted)
	row.MovedMs = ms(k.now - moved)
	row.State = [...]string{protocol.OfferOpen: "OPEN", protocol.OfferEnding: "ENDING", protocol.OfferEnded: "ENDED", protocol.OfferQuarantined: "QUARANTINED"}[o.m.Phase()]
	oldest := o.oldest()
	switch {
	case oldest != nil:
		o.waitsForHolder(k, &row, oldest)
	case o.m.Phase() == protocol.OfferOpen:
		row.Waiting = o.unbound(k)
		if row.Used > 0 && row.Waiting.For == wire.WaitSource {
			row.Waiting = k.waits(wire.WaitSource, fmt.Sprintf("a further transfer to bind it: %d have", row.Used), moved)
		}
	default:
		row.Waiting = k.waits(wire.WaitSettlement, "this node to write the end down and to tell it", moved)
	}
	if k.id != "" {
		for _, h := range o.holders {
			k.found = k.found || strings.HasPrefix(h.bind.transfer, k.id)
		}
	}
	if k.detail {
		for _, h := range o.holders {
			state := "BOUND"
			if o.m.Fencing(h.id) {
				state = "FENCING"
			}
			row.Holders = append(row.Holders, wire.HolderRow{TransferID: h.bind.transfer, Peer: h.bind.ls.link.Peer().Node, Provider: h.bind.ls.provider,
				State: state, MovedMs: ms(k.now - h.moved)})
		}
		slices.SortFunc(row.Holders, func(a, b wire.HolderRow) int { return strings.Compare(a.TransferID, b.TransferID) })
	}
	return row
}

// oldest is the holder that has stood still longest, one that is being fenced before others.
func (o *offer) oldest() (first *holder) {
	for _, h := range o.holders {
		if first == nil || o.m.Fencing(h.id) && !o.m.Fencing(first.id) || o.m.Fencing(h.id) == o.m.Fencing(first.id) && h.moved < first.moved {
			first = h
		}
	}
	return first
}

func (o *offer) waitsForHolder(k *look, row *wire.LeaseRow, h *holder) {
	b := h.bind
	row.Peer, row.Provider, row.TransferID, row.TraceID = b.ls.link.Peer().Node, b.ls.provider, b.transfer, traceOf(b.parent)
	if o.m.Fencing(h.id) {
		row.Waiting = k.fence(row.Peer, row.Provider, o.m.Outcome(), h.moved)
		return
	}
	word := "RELEASE"
	if o.access == rdma.AccessWrite {
		word = "FIN and its bytes"
	}
	text := fmt.Sprintf("%s of %s's transfer", word, row.Peer)
	if n := len(o.holders); n > 1 {
		text = fmt.Sprintf("%d transfers that hold it; the one that stands still longest: %s", n, text)
	}
	row.Waiting = k.waits(wire.WaitHolder, text, h.moved)
	row.Waiting.Peer = row.Peer
}

func (w *whole) row(k *look) wire.LeaseRow {
	row := w.begun(k, "instance", w.instance)
	if !k.lock(&w.mu) {
		row.State, row.Waiting = "BUSY", busy()
		return row
	}
	defer w.mu.Unlock()
	row.RemainingMs = k.remaining(w.ends)
	row.Peer, row.Provider, row.TransferID = w.event.Peer, w.event.Provider, w.event.TransferID
	moved := max(w.moved, w.granted)
	row.MovedMs = ms(k.now - moved)
	var making, left []string
	for i := range w.parts {
		p := &w.parts[i]
		name := fmt.Sprintf("rank %d on %s", p.rank.Rank, p.rank.Peer.Node)
		switch {
		case w.m.PartOver(i):
		case p.own == nil && p.ls == nil:
			making = append(making, name)
		default:
			left = append(left, name)
		}
	}
	text := "the end of " + few(left)
	switch {
	case w.m.Failed():
		row.State = "ENDING"
		text += ", which the lease's end (" + w.m.Outcome().String() + ") takes back"
	case len(making) > 0:
		row.State, text = "GRANTING", "the grant of "+few(making)
	case w.m.Claimed():
		row.State = "BOUND"
	default:
		row.State = "GRANTED"
		if len(left) == len(w.parts) {
			row.Waiting = k.waits(wire.WaitSource, "a transfer to bind a part of it", moved)
			return row
		}
	}
	row.Waiting = k.waits(wire.WaitParts, text, moved)
	return row
}

// few names some of many.
func few(names []string) string {
	const most = 8
	if n := len(names); n > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n-most)
	}
	return strings.Join(names, ", ")
}

func (a localAsker) node() string { return a.w.e.o.Node }
func (a *linkAsker) node() string { return a.ls.link.Peer().Node }
