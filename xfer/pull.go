package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
	"github.com/kvxfer/kvxfer/xfer/protocol"
)

// Pull starts a transfer of a read lease's blocks to own blocks and returns before the peer was asked. The own blocks
// are LEASED until it ends, in the log before a byte can land, so that a crash finds them torn. They become COMMITTED only
// when the source has answered RELEASE.
func (e *Engine) Pull(id ClientID, r wire.PullRequest, blocks []uint32) (wire.PushInfo, error) {
	const op = "pull"
	ca, t, g, err := e.blockTransfer(op, id, r.Cache, r.Ticket, wire.ModeRead, blocks)
	if err != nil {
		return wire.PushInfo{}, err
	}
	p := &transfer{kind: kindPull, region: ca.region, cache: ca, blocks: blocks, ticket: g, own: random16(), note: r.Notification}
	if r.Traceparent == "" {
		r.Traceparent = t.Traceparent
	}
	return e.start(id, p, r.TimeoutMillis, r.TransferIdentity, r.Traceparent, r.SpanID,
		func() (err error) {
			p.generation, err = ca.grant(op, blockdb.LeaseRecord{LeaseID: p.own, Kind: blockdb.KindWrite, Blocks: blocks,
				TransferID: hex16(p.transferID), Peer: g.Node})
			return err
		},
		func() {
			p.handOver(ca.spec.Layout.Layers)
			p.run(protocol.TransferEvent{Kind: protocol.TransferFinish})
		})
}

// settle ends the lease on a pull's own blocks: the provider touches them no more.
func (p *transfer) settle(code fault.Code) {
	defer p.cache.unuse()
	if code == 0 {
		// Where the record fails the bytes are whole all the same; they are only not served after a restart.
		p.unlogged("commit", p.cache.store.Commit(p.own, blockdb.CommitRecord{TransferID: hex16(p.transferID), Peer: p.ticket.Node, Bytes: p.bytes}))
		return
	}
	p.unlogged("revoke", p.cache.store.Revoke(p.own))
	p.unlogged("free", p.cache.store.Free(p.own))
}

func (p *transfer) unlogged(what string, err error) {
	if err != nil {
		p.e.o.Logger.Error("end of a pull could not be logged", "step", what, "transfer", hex16(p.transferID), "error", err)
	}
}
