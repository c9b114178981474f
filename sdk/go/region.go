package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const (
	// MaxRegion is the largest region, in bytes: what is beyond it lies in no peer's memory either.
	MaxRegion = 1 << 62
	// maxRanges and maxParts are what an array of one frame holds.
	maxRanges = (64 << 20) / 24
	maxParts  = (64 << 20) / 16
)

// Region is raw memory without blocks, moved by byte ranges, from [Client.AllocateRegion] or [Client.RegisterRegion].
//
// Nothing of it is journalled or committed: that bytes which a peer read were not changed meanwhile is as true as the owner
// makes it. Its methods may be called from any goroutine.
type Region struct{ registered }

// Size is the number of bytes.
func (r *Region) Size() int { return r.size }

// Part is part of a region, in bytes.
type Part struct{ Offset, Length int64 }

// Range moves Length bytes between offset Local of the own region and offset Remote of the advertised one.
type Range struct{ Local, Remote, Length int64 }

// AdvertiseOptions are the terms of an advertisement.
type AdvertiseOptions struct {
	Mode  Mode          // what the peers may do; "": ModeWrite
	Parts []Part        // that are opened; nil: the whole region
	Uses  int           // how many transfers may bind it, 0..4294967295; 0: any number
	TTL   time.Duration // 1 ms to 24 h, on the daemon's clock; 0: 30 seconds
}

// Advertise opens parts of the region to whoever gets the ticket, until it is used up, over or taken back. ctx bounds the
// call, with 5 seconds where it has no deadline.
//
// Errors: InvalidArgument names the field, and the index of a wrong part; DeadlineExceeded or Cancelled (Released false), it
// is revoked as soon as the daemon's answer comes.
func (r *Region) Advertise(ctx context.Context, o AdvertiseOptions) (*Advertisement, error) {
	const op = "advertise"
	at, err := r.use(op)
	if err != nil {
		return nil, err
	}
	if o.Mode == "" {
		o.Mode = ModeWrite
	}
	if o.Mode != ModeWrite && o.Mode != ModeRead {
		return nil, invalid(op, "mode", "%.80q, allowed write, read", string(o.Mode))
	}
	if o.Uses < 0 || int64(o.Uses) > 1<<32-1 {
		return nil, invalid(op, "uses", "%d, allowed 0..4294967295", o.Uses)
	}
	ttl, err := checkTTL(op, o.TTL, defaultTTL)
	if err != nil {
		return nil, err
	}
	packed, err := packParts(op, o.Parts, r.size)
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx, defaultTimeout)
	defer cancel()
	sp := startSpan(ctx, "kvxfer.advertise", r.client.samples)
	var adv *Advertisement
	fe, over := askGrant(ctx, at.session, request{op: op, kind: wire.KindAdvertise, data: packed, body: &wire.Advertise{Region: at.region,
		Mode: string(o.Mode), Uses: uint32(o.Uses), TTLMillis: millis(ttl), Traceparent: sp.traceparent()}}, ttl, sp, func(g granted) (grantHandle, func()) {
		adv = newAdvertisement(at.session, g, r.name, o.Mode, r.Guarantee(), sp)
		return adv, adv.discard
	})
	if fe != nil {
		return nil, newError(fe, over, nil)
	}
	return adv, nil
}

// Writev writes ranges of the region to ranges of the advertised one that the ticket names; no range at all delivers the
// notification alone. At most 2,796,202 ranges.
//
// It returns as soon as the own daemon knows of it. Until the transfer is released nobody may change the bytes that were
// handed over. ctx is as for [Cache.Write].
//
// Errors: InvalidArgument names the field, and the index of a wrong range; TicketInvalid, the ticket cannot be read;
// DeadlineExceeded, the own daemon does not answer (Released false).
func (r *Region) Writev(ctx context.Context, ranges []Range, ticket string, options ...TransferOption) (*Scatter, error) {
	return r.scatter(ctx, "writev", ModeWrite, ranges, ticket, options)
}

// Readv reads ranges of an advertised region into ranges of this one; the ticket is that of an advertisement for reading.
// When it ends well the advertisement lasted throughout. Until the transfer is released bytes may still land in the own
// ranges. All else is as for Writev.
func (r *Region) Readv(ctx context.Context, ranges []Range, ticket string, options ...TransferOption) (*Scatter, error) {
	return r.scatter(ctx, "readv", ModeRead, ranges, ticket, options)
}

// Deregister gives the region back: it revokes and fences its advertisements and ends its transfers. After nil nothing can
// touch the memory any more; what the SDK allocated is unmapped, so that slices of it must not be used. A second call does
// nothing. ctx bounds the call, with 30 seconds where it has no deadline.
//
// Errors: DeadlineExceeded, not fenced in time (Released false): call it again; DaemonUnavailable, the daemon is lost
// (Released false): the region stays, for Reconnect.
func (r *Region) Deregister(ctx context.Context) error { return r.giveBack(ctx, "deregister", r) }

func (r *Region) scatter(ctx context.Context, op string, mode Mode, ranges []Range, ticket string, options []TransferOption) (*Scatter, error) {
	at, err := r.use(op)
	if err != nil {
		return nil, err
	}
	o, err := transferOptionsOf(op, options)
	if err != nil {
		return nil, err
	}
	packed, err := packRanges(op, ranges, r.size)
	if err != nil {
		return nil, err
	}
	timeout := timeLeft(ctx, defaultTransfer)
	sp := startTransferSpan(ctx, "kvxfer.scatter")
	s := &Scatter{}
	s.init(at.session, op, r.name, nil, r.Guarantee(), s, timeout, sp)
	ctx, cancel := context.WithTimeout(ctx, r.client.timeout) // the deadline is the transfer's, and may be far
	defer cancel()
	fe := s.start(ctx, request{op: op, kind: wire.KindScatter, data: packed, body: &wire.ScatterRequest{Region: at.region, Mode: string(mode), Ticket: ticket,
		TimeoutMillis: millis(timeout), Traceparent: sp.parent(), SpanID: sp.spanID(), Notification: o.note, TransferIdentity: o.identity}}, s, s.Cancel)
	if fe != nil {
		return nil, s.leaving(fe)
	}
	return s, nil
}

// packRanges is the array of SCATTER over size bytes of own memory.
func packRanges(op string, ranges []Range, size int) ([]byte, error) {
	if len(ranges) > maxRanges {
		return nil, invalid(op, "ranges", "%d ranges, allowed 0..%d", len(ranges), maxRanges)
	}
	out := make([]byte, 0, 24*len(ranges))
	one := make([]wire.ScatterRange, 1)
	for i, x := range ranges {
		if x.Local < 0 || x.Remote < 0 || x.Length < 1 || x.Length > int64(size) || x.Local > int64(size)-x.Length {
			return nil, invalid(op, "ranges", "ranges[%d] has %d bytes from %d to %d of the peer, allowed at least 1 byte within 0..%d, no negative number",
				i, x.Length, x.Local, x.Remote, size)
		}
		if x.Remote > MaxRegion-x.Length {
			return nil, invalid(op, "ranges", "ranges[%d] has %d bytes from %d of the peer, allowed up to %d", i, x.Length, x.Remote, MaxRegion)
		}
		one[0] = wire.ScatterRange{Local: uint64(x.Local), Remote: uint64(x.Remote), Len: uint64(x.Length)}
		out = wire.AppendScatterRanges(out, one)
	}
	return out, nil
}

// packParts is the array of ADVERTISE over size bytes of own memory.
func packParts(op string, parts []Part, size int) ([]byte, error) {
	if parts != nil && (len(parts) == 0 || len(parts) > maxParts) {
		return nil, invalid(op, "parts", "%d parts, allowed 1..%d, or nil for the whole region", len(parts), maxParts)
	}
	out := make([]byte, 0, 16*len(parts))
	one := make([]wire.RegionSpan, 1)
	for i, x := range parts {
		if x.Offset < 0 || x.Length < 1 || x.Length > int64(size) || x.Offset > int64(size)-x.Length {
			return nil, invalid(op, "parts", "parts[%d] has %d bytes from %d, allowed at least 1 byte within 0..%d", i, x.Length, x.Offset, size)
		}
		one[0] = wire.RegionSpan{Off: uint64(x.Offset), Len: uint64(x.Length)}
		out = wire.AppendRegionSpans(out, one)
	}
	return out, nil
}

// For the client.

func (r *Region) endings(at attachment) []request {
	return []request{{kind: wire.KindDeregisterRegion, body: &wire.DeregisterRegion{Region: at.region}}}
}

func (r *Region) register(ctx context.Context, op string, s *session) (attachment, []uint32, *fault.Error) {
	n, fe := r.handOver(ctx, op, s)
	return attachment{session: s, region: n}, nil, fe
}
