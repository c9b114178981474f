package localapi

import (
	"context"

	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// Engine is what the server needs of xfer.Engine.
//
// The calls that the queue makes for one client (RegisterRegion to Lease, and Push) never overlap. PushLayer,
// PushFinish, PushCancel and Revoke may come beside them, and so may what waits for other nodes: Lookup, Open and
// LeaseInstance. ClientGone is the client's last call: the context of a call
// in progress is cancelled, and ClientGone follows when it has returned; so a call that waits must heed its context.
type Engine interface {
	AddClient(info xfer.ClientInfo, sink xfer.Sink) (xfer.ClientID, error)
	// ClientGone starts the fences and returns at once.
	ClientGone(c xfer.ClientID)
	// RegisterRegion takes m over; on an error the caller closes it.
	RegisterRegion(ctx context.Context, c xfer.ClientID, r wire.RegisterRegion, m xfer.Mapping) (wire.RegionInfo, error)
	DeregisterRegion(ctx context.Context, c xfer.ClientID, region uint64) error
	RegisterCache(ctx context.Context, c xfer.ClientID, r wire.RegisterCache, vouched []wire.Vouch) (wire.CacheInfo, []uint32, error)
	DropCache(ctx context.Context, c xfer.ClientID, cache uint64) error
	Blocks(c xfer.ClientID, cache uint64) (wire.BlocksInfo, []byte, error)
	Evict(ctx context.Context, c xfer.ClientID, cache uint64, blocks []uint32) error
	Lease(ctx context.Context, c xfer.ClientID, r wire.LeaseRequest, blocks []uint32) (wire.LeaseInfo, error)
	Revoke(c xfer.ClientID, lease uint64) error
	Push(c xfer.ClientID, r wire.PushRequest, blocks []uint32) (wire.PushInfo, error)
	PushLayer(c xfer.ClientID, p wire.LayerPart)
	PushFinish(c xfer.ClientID, transfer uint64, notification []byte)
	CancelTransfer(c xfer.ClientID, transfer uint64)
	Pull(c xfer.ClientID, r wire.PullRequest, blocks []uint32) (wire.PushInfo, error)
	Scatter(c xfer.ClientID, r wire.ScatterRequest, ranges []wire.ScatterRange) (wire.PushInfo, error)
	Prepare(c xfer.ClientID, r wire.Prepare, array []byte) (wire.PushInfo, error)
	// NewPosting is called beside other calls; what it returns is used by one goroutine at a time.
	NewPosting(c xfer.ClientID, done func(wire.Posted)) xfer.Poster
	Advertise(ctx context.Context, c xfer.ClientID, r wire.Advertise, spans []wire.RegionSpan) (wire.LeaseInfo, error)
	Renew(c xfer.ClientID, r wire.Renew) error
	Publish(c xfer.ClientID, r wire.Publish, blocks []uint32, keys [][]byte) (wire.PublishInfo, error)
	Lookup(ctx context.Context, c xfer.ClientID, r wire.Lookup, keys []byte) (wire.LookupInfo, error)
	Open(ctx context.Context, c xfer.ClientID, r wire.Open, keys []byte) (wire.OpenInfo, error)
	// Probe and Trace are an observer's, too, whom the engine does not know.
	Probe(ctx context.Context, tenant string, r wire.Probe) (wire.ProbeInfo, error)
	// Trace comes beside other calls, as Lookup does. The array of its answer is OTLP JSON lines.
	Trace(ctx context.Context, who xfer.ClientInfo, r wire.TraceQuery) (wire.TraceInfo, []byte, error)
	// LeaseInstance calls answered before the lease's first event, and not at all with an error.
	LeaseInstance(ctx context.Context, c xfer.ClientID, r wire.LeaseRequest, blocks []uint32, answered func(wire.LeaseInfo)) error
}
