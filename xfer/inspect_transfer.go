package xfer

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

func (e *Engine) inspectTransfers(k *look, tenant string, q *wire.Inspect) (info wire.InspectInfo, array []byte, err error) {
	ended := strings.HasPrefix(q.After, "e")
	letter := byte('t')
	if ended {
		letter = 'e'
	}
	after, err := cursor(q.After, letter)
	if err != nil {
		return info, nil, err
	}
	wanted := func(row *wire.TransferRow) bool {
		return (tenant == "" || row.Tenant == tenant) && ofMemory(q.Cache, row.Tenant, row.Memory) && strings.HasPrefix(row.TransferID, q.ID)
	}
	var rows []wire.TransferRow
	limit := rowLimit(q)
	if !ended {
		var all []numbered[*transfer]
		e.mu.Lock()
		for id, p := range e.transfers {
			if id > after {
				all = append(all, numbered[*transfer]{id, p})
			}
		}
		e.mu.Unlock()
		for i, x := range sorted(all) {
			if row := x.v.row(k); wanted(&row) {
				rows = append(rows, row)
			}
			if (len(rows) == limit || i == scanMost-1) && i+1 < len(all) {
				info.Next = cursorAt('t', x.id)
				break
			}
		}
		after = math.MaxUint64
	}
	if q.Ended && info.Next == "" {
		e.ended.before(after, k.now, func(number uint64, row wire.TransferRow) bool {
			if len(rows) == limit {
				info.Next = cursorAt('e', number+1)
				return false
			}
			if wanted(&row) {
				rows = append(rows, row)
			}
			return true
		})
	}
	array, err = wire.PackRows(rows)
	return info, array, err
}

// row describes a transfer that runs.
func (p *transfer) row(k *look) wire.TransferRow {
	if !k.lock(&p.mu) {
		row := p.begunRow(k)
		row.State, row.Waiting = "BUSY", busy()
		return row
	}
	defer p.mu.Unlock()
	return p.rowLocked(k)
}

// begunRow is what never changes, and so needs no lock.
func (p *transfer) begunRow(k *look) wire.TransferRow {
	mode := wire.ModeRead
	if p.write {
		mode = wire.ModeWrite
	}
	return wire.TransferRow{TransferID: hex16(p.transferID), Attempt: p.attempt, Kind: p.op(), Mode: mode, Tenant: p.client.info.Tenant, Memory: p.name(),
		Blocks: len(p.blocks), Peer: p.ticket.Node, PeerAddr: p.ticket.Addr, LeaseID: p.ticket.Lease, Instance: p.instance,
		RemainingMs: k.remaining(p.deadline), AgeMs: ms(k.now - p.begun), Process: p.client.info.Process, Pid: p.client.info.Pid}
}

var transferStates = [...]string{protocol.TransferBinding: "BINDING", protocol.TransferOpen: "OPEN", protocol.TransferFinishing: "FINISHING",
	protocol.TransferClosing: "CLOSING", protocol.TransferEnded: "ENDED"}

// rowLocked describes it whole. The caller holds p.mu.
func (p *transfer) rowLocked(k *look) wire.TransferRow {
	row := p.begunRow(k)
	row.State, row.TraceID = transferStates[p.m.Phase()], p.traceID
	row.Pieces, row.HandedOver, row.Placed, row.Outstanding = p.m.Pieces(), p.m.Asked(), p.m.Placed(), p.m.Outstanding()
	row.Bytes = p.bytes
	row.MovedMs = ms(k.now - max(p.moved, p.begun))
	busy := p.flight.busy
	if p.flight.since != 0 {
		busy += k.now - p.flight.since
	}
	row.BusyMs = ms(busy)
	if p.ls != nil {
		row.Provider, row.Reason = p.way()
		row.Operations, row.Queued, row.Depth = p.ls.out.load(p)
	}
	if p.end != nil { // its end was told; what is left is that nothing touches the memory any more
		row.Result, row.Error = p.end.Result, p.end.Error
	}
	if k.detail && p.m.Phase() < protocol.TransferFinishing {
		row.Missing = gaps(p.m.Missing())
	}
	row.Waiting = p.waits(k, &row)
	return row
}

// waits says what an unfinished transfer waits for, from the machine's state. The caller holds p.mu.
func (p *transfer) waits(k *look, row *wire.TransferRow) *wire.Waiting {
	peer := p.ticket.Node
	var w *wire.Waiting
	switch p.m.Phase() {
	case protocol.TransferBinding:
		if p.ls == nil {
			return p.waitsForLink(k)
		}
		w = k.waits(wire.WaitBind, fmt.Sprintf("the answer of %s to BIND (link over %s is up)", peer, row.Provider), p.asked)
	case protocol.TransferOpen:
		switch {
		case p.posts != nil:
			rounds, running := p.posts.count()
			if running == 0 {
				return k.waits(wire.WaitClient, fmt.Sprintf("the client %s to post its list again or to finish: %d posts have ended well", who(row), rounds), p.moved)
			}
			w = k.waits(wire.WaitProvider, fmt.Sprintf("provider %s to complete %d posts of the list; %d have ended well", row.Provider, running, rounds), p.moved)
		case row.Outstanding > 0:
			return p.waitsForProvider(k, row)
		case row.HandedOver < row.Pieces:
			return k.waits(wire.WaitClient, fmt.Sprintf("the client %s to hand over %d of %d pieces", who(row), row.Pieces-row.HandedOver, row.Pieces), p.moved)
		default:
			return k.waits(wire.WaitClient, fmt.Sprintf("the client %s to finish: every piece is handed over", who(row)), p.moved)
		}
	case protocol.TransferFinishing:
		if p.write {
			w = k.waits(wire.WaitDone, fmt.Sprintf("DONE from %s, which fences its window and commits: every byte is placed", peer), p.moved)
		} else {
			w = k.waits(wire.WaitRelease, fmt.Sprintf("the answer of %s to RELEASE, whether it held its memory throughout: every byte is here", peer), p.moved)
		}
	case protocol.TransferClosing:
		if row.Outstanding > 0 {
			return p.waitsForProvider(k, row)
		}
		w = k.waits(wire.WaitReason, fmt.Sprintf("the word of %s on why its window vanished", peer), p.moved)
	default:
		return k.waits(wire.WaitSettlement, "this node to give the memory back and to tell the end", p.moved)
	}
	w.Peer = peer
	return w
}

func who(row *wire.TransferRow) string {
	if row.Process == "" {
		return fmt.Sprintf("(pid %d)", row.Pid)
	}
	return fmt.Sprintf("%s (pid %d)", row.Process, row.Pid)
}

func (p *transfer) waitsForLink(k *look) *wire.Waiting {
	w := k.waits(wire.WaitLink, "a link to "+p.ticket.Node, p.begun)
	w.Peer, w.Addr = p.ticket.Node, p.ticket.Addr
	if d, ok := p.e.o.Dialer.(DialWatcher); ok {
		if s, ok := d.Dialing(p.peerRef()); ok {
			w.Addr = s.Addr
			w.Text = fmt.Sprintf("a link to %s: %s at %s for %s", p.ticket.Node, s.Step, s.Addr, s.For.Round(time.Millisecond))
			if s.Before != "" {
				w.Text += "; before: " + s.Before
			}
		}
	}
	return w
}

// waitsForProvider is of posted and queued operations. Progress is the last completion, not what the client hands over
// meanwhile.
func (p *transfer) waitsForProvider(k *look, row *wire.TransferRow) *wire.Waiting {
	var text string
	switch {
	case row.Operations == 0 && row.Queued > 0:
		text = fmt.Sprintf("the window of provider %s: %d parts stand behind %d operations on the link to %s", row.Provider, row.Queued, row.Depth, p.ticket.Node)
	default:
		text = fmt.Sprintf("provider %s to complete %d operations to %s (%d parts queued, %d operations on the link)", row.Provider, row.Operations, p.ticket.Node, row.Queued, row.Depth)
	}
	if row.State == "CLOSING" {
		text += ": they are cancelled, and the memory is in use until then"
	} else if left := row.Pieces - row.HandedOver; left > 0 {
		text += fmt.Sprintf("; the client has %d of %d pieces to hand over", left, row.Pieces)
	}
	w := k.waits(wire.WaitProvider, text, max(p.flight.since, p.flight.last))
	w.Peer = p.ticket.Node
	return w
}

// load is what a transfer has with the provider: operations posted, parts queued; and the operations of all transfers on the
// link.
func (q *outQueue) load(p *transfer) (operations, queued, depth int) {
	if q == nil {
		return 0, 0, 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if o := q.of[p]; o != nil {
		operations, queued = len(o.flying), len(o.parts)
	}
	return operations, queued, q.flying
}
