package kvxfer

import (
	"context"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxEnds bounds the ends of holders that wait to be asked for; older ones are dropped.
const maxEnds = 4096

// HolderResult is how one peer's transfer under a read lease or an advertisement ended. It is fenced.
type HolderResult struct {
	Peer         string // its node
	Provider     string // what moved the bytes
	TransferID   string // 32 hex digits, the same on both nodes
	Bytes        uint64 // payload bytes that it wrote, or by its own word read
	Notification []byte // what it gave, up to 64 KiB
	Err          error  // nil when it went well. Of a reader that means: its bytes were held throughout
	Guarantee    string // "full", or "live-client-only" where what is promised of the memory ends with its client's process
}

// OfferResult is how a read lease or an advertisement was used up. Of an instance's lease, whose ranks' handles tell of the
// holders, it has the bytes alone.
type OfferResult struct {
	Holders   int    // transfers that went well
	Failed    int    // transfers that did not
	Bytes     uint64 // payload bytes of those that went well
	Guarantee string // "full", or "live-client-only"
}

// offer is what several peers may hold at a time.
type offer struct {
	grant[OfferResult]

	omu  sync.Mutex
	ends []HolderResult
	sum  OfferResult
	more chan struct{} // closed and made anew when ends gets something; nil: nobody waits
}

// Holders are the transfers that have ended since the last call, in order; of those that nobody asked for the newest 4,096
// are kept. What NextHolder returned is not among them.
func (o *offer) Holders() []HolderResult {
	o.omu.Lock()
	defer o.omu.Unlock()
	out := o.ends
	o.ends = nil
	return out
}

// NextHolder waits for the next transfer's end: the oldest that was not reported yet, or the next to come. It returns one
// that failed too, see [HolderResult]. When the permission is over first the error is its own, or NotFound where it ended
// well; when ctx ends first it is DeadlineExceeded or Cancelled. A context without a deadline waits for the permission's own
// time.
func (o *offer) NextHolder(ctx context.Context) (HolderResult, error) {
	for {
		o.omu.Lock()
		if len(o.ends) > 0 {
			end := o.ends[0]
			o.ends = o.ends[1:]
			o.omu.Unlock()
			return end, nil
		}
		if o.isOver() { // its last holder's end came before
			o.omu.Unlock()
			if err := o.Err(); err != nil {
				return HolderResult{}, err
			}
			return HolderResult{}, o.leaving(fault.New(fault.NotFound, o.op+".next_holder", "it is over, no holder will come"))
		}
		if o.more == nil {
			o.more = make(chan struct{})
		}
		more := o.more
		o.omu.Unlock()
		if fe := o.await(ctx, more); fe != nil {
			return HolderResult{}, o.leaving(fe)
		}
	}
}

func (o *offer) onHolder(e *wire.HolderEvent, note []byte) {
	end := HolderResult{Peer: e.Peer, Provider: e.Provider, TransferID: e.TransferID, Bytes: e.Bytes, Notification: note, Guarantee: guaranteeOf(e.Guarantee)}
	if e.Error != nil {
		end.Err = newError(fault.From(o.op, fault.FromWire(e.Error)), true, nil)
	}
	o.omu.Lock()
	defer o.omu.Unlock()
	if end.Err == nil {
		o.sum.Holders++
		o.sum.Bytes += e.Bytes
	} else {
		o.sum.Failed++
	}
	if len(o.ends) >= maxEnds {
		o.ends = o.ends[1:]
	}
	o.ends = append(o.ends, end)
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
}

func (o *offer) onEnded(e *wire.LeaseEvent, _ []byte) bool {
	return o.over(e, func() OfferResult {
		o.omu.Lock()
		defer o.omu.Unlock()
		r := o.sum
		if r.Bytes == 0 {
			r.Bytes = e.Bytes
		}
		r.Guarantee = guaranteeOf(e.Guarantee)
		return r
	})
}

func (o *offer) describeOffer(sp *span, v *OfferResult) {
	o.describeGrant(sp)
	if o.ids != nil {
		sp.set("kvxfer.blocks", len(o.ids))
	}
	if v != nil {
		sp.set("kvxfer.bytes", v.Bytes)
	}
}

// ReadLease is permission for peers to read own blocks, from [Cache.LeaseRead].
//
// The blocks are HELD until it is over: do not change them, and the daemon refuses to lease them for writing. It is over
// when its readers' transfers have ended, or by revocation or time; Wait then returns an [OfferResult] or LeaseExpired,
// LeaseRevoked, ... Close, for defer, revokes and fences it.
//
// Its methods may be called from any goroutine.
type ReadLease struct {
	offer
	ranks, readers int
}

func newReadLease(s *session, info granted, place string, ids []uint32, readers int, guarantee string, sp *span) *ReadLease {
	l := &ReadLease{ranks: int(info.Ranks), readers: readers}
	l.describe = l.describeOffer
	l.init(s, "lease", info, place, ids, guarantee, l, sp)
	return l
}

// Ranks is how many ranks an instance's lease covers; 0 of a lease on one cache.
func (l *ReadLease) Ranks() int { return l.ranks }

// Readers is how many transfers may bind it.
func (l *ReadLease) Readers() int { return l.readers }

// Advertisement is permission for peers to write or read parts of a raw region, from [Region.Advertise].
//
// It is a lease: over when its uses are used up, or by revocation or time. After Revoke has returned nil no peer can write
// or read them any more; Close does the same, for defer.
//
// Its methods may be called from any goroutine.
type Advertisement struct {
	offer
	mode Mode
}

func newAdvertisement(s *session, info granted, place string, mode Mode, guarantee string, sp *span) *Advertisement {
	a := &Advertisement{mode: mode}
	a.describe = a.describeOffer
	a.init(s, "advertise", info, place, nil, guarantee, a, sp)
	return a
}

// Mode is what the peers may do.
func (a *Advertisement) Mode() Mode { return a.mode }
