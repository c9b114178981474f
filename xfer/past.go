package xfer

import (
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// keptTransfers is how many transfers that ended are remembered. They are written once each, and for people alone.
const keptTransfers = 256

// pastTransfers is the last transfers that ended.
type pastTransfers struct {
	mu   sync.Mutex
	ring [keptTransfers]pastTransfer
	n    uint64 // added so far; number i is in slot i % keptTransfers
}

type pastTransfer struct {
	row *wire.TransferRow // never changed once it is here
	at  rdma.Instant
}

func (p *pastTransfers) add(row *wire.TransferRow, at rdma.Instant) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ring[p.n%keptTransfers] = pastTransfer{row, at}
	p.n++
}

// before lists those with a number below n, the latest first; visit returns false to stop. n is at most what was added.
func (p *pastTransfers) before(n uint64, now rdma.Instant, visit func(number uint64, row wire.TransferRow) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	oldest := uint64(0)
	if p.n > keptTransfers {
		oldest = p.n - keptTransfers
	}
	for i := min(n, p.n); i > oldest; i-- {
		x := p.ring[(i-1)%keptTransfers]
		row := *x.row
		row.EndedMs = ms(now - x.at)
		if !visit(i-1, row) {
			return
		}
	}
}

// endRow is what is remembered of a transfer whose end is being told. The caller holds p.mu.
func (p *transfer) endRow(ev *wire.TransferEvent) *wire.TransferRow {
	row := p.rowLocked(&look{now: p.e.o.Clock.Now()})
	row.State, row.Result, row.Error = "ENDED", "DONE", ev.Error
	if ev.Error != nil {
		row.Result = ev.Error.Name
	}
	row.Waiting, row.RemainingMs = nil, 0
	return &row
}

// ms is a span of the engine's clock in milliseconds; what a simulation's clock makes negative is none.
func ms(d rdma.Instant) int64 { return max(0, time.Duration(d).Milliseconds()) }
