package simtest_test

import (
	"fmt"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer/protocol"
	"github.com/kvxfer/kvxfer/xfer/simtest"
)

// A raw region of a history is slots, which a round hands out.
const (
	rawSlots = 24
	slotSize = 512
)

// scattering is an advertisement and the transfers under it.
type scattering struct {
	a     *simtest.Advert
	all   []*simtest.Scatter
	rogue []bool // a range of it leaves what is advertised
	notes []string
	quiet bool
}

func (x *scattering) hush(quiet bool) { x.quiet = x.quiet && quiet }

// ranges pairs parts of own slots with the same parts of the peer's.
func (h *history) ranges(own, peer []int) (out []wire.ScatterRange) {
	for i := range own {
		at := uint64(h.rng.IntN(slotSize))
		out = append(out, wire.ScatterRange{Local: uint64(own[i])*slotSize + at, Remote: uint64(peer[i])*slotSize + at, Len: 1 + h.rng.Uint64N(slotSize-at)})
	}
	return out
}

// beginScatter writes down the life of an advertisement of some slots: transfers to a share of them each, and what ends them.
func (h *history) beginScatter(own, peer *simtest.Raw, take func(*simtest.Raw, int) []int, acts *[]action) *scattering {
	x := &scattering{quiet: true}
	mode := []string{wire.ModeWrite, wire.ModeRead}[h.rng.IntN(2)]
	ttl, start, transfers, each := h.times(), h.some(span/2), 1+h.rng.IntN(3), h.rng.IntN(4)
	uses := uint32(transfers)
	if h.rng.IntN(3) == 0 {
		uses = 0 // any number: its time ends it
	}
	slots := take(peer, max(1, transfers*each))
	local := take(own, transfers*each)
	if slots == nil || transfers*each > 0 && local == nil {
		return nil
	}
	var spans []wire.RegionSpan
	for _, s := range slots {
		spans = append(spans, wire.RegionSpan{Off: uint64(s) * slotSize, Len: slotSize})
	}
	x.quiet = ttl == time.Minute
	add := func(at time.Duration, on *simtest.Node, do func()) { *acts = append(*acts, action{at, on, do}) }
	advertised := func(f func()) func() {
		return func() {
			if x.a != nil {
				f()
			}
		}
	}
	add(start, peer.Node, func() {
		var err error
		if x.a, err = peer.Advertise(mode, uses, ttl, spans...); err != nil {
			h.refused(err)
		}
	})
	x.all, x.rogue, x.notes = make([]*simtest.Scatter, transfers), make([]bool, transfers), make([]string, transfers)
	for i := range transfers {
		list := h.ranges(local[i*each:][:each], slots[i*each:])
		if each > 0 && h.rng.IntN(8) == 0 { // the last byte of it is one too far, or far away
			x.rogue[i], x.quiet = true, false
			outside := 0
			for _, s := range slots {
				outside = max(outside, s+1)
			}
			list[0].Remote = uint64(outside)*slotSize - list[0].Len + 1
		}
		timeout, at := h.times(), start+h.some(span/4)
		x.notes[i], x.quiet = fmt.Sprintf("scatter %d", i), x.quiet && timeout == time.Minute
		add(at, own.Node, advertised(func() {
			var err error
			if x.all[i], err = own.Scatter(mode, x.a.Ticket, timeout, []byte(x.notes[i]), list...); err != nil {
				h.refused(err)
			}
		}))
		if h.rng.IntN(8) == 0 {
			x.quiet = false
			add(at+h.some(30*time.Millisecond), own.Node, func() {
				if x.all[i] != nil {
					x.all[i].Cancel()
				}
			})
		}
	}
	switch h.rng.IntN(8) {
	case 0:
		x.quiet = false
		add(start+h.some(span/4), peer.Node, advertised(func() { _ = x.a.Revoke() })) // Closed where the client is gone, which ends it too
	case 1:
		x.quiet = false
		add(start+h.some(span/2), peer.Node, advertised(func() { h.renewal(x.a.Renew(h.times())) }))
	}
	return x
}

// ended looks at both ends of every transfer.
func (x *scattering) ended(h *history) {
	if x.a == nil {
		return
	}
	a := x.a
	lost := a.Raw.Lost() && a.Ends == 0
	if !lost {
		require.Equal(h.t, 1, a.Ends, "events that ended an advertisement")
		h.inTime(a.EndedAt, a.Deadline.Add(slack))
	}
	for i, s := range x.all {
		if s == nil || s.Raw.Lost() && s.Ends*s.Released == 0 {
			continue
		}
		h.transfers++
		require.Equal(h.t, 1, s.Ends, "events that ended a scatter")
		require.Equal(h.t, 1, s.Released, "times that a scatter's memory was given back")
		h.inTime(s.EndedAt, s.Deadline.Add(time.Duration(protocol.ReleaseGrace)))
		h.inTime(s.ReleasedAt, s.Deadline.Add(time.Duration(protocol.ReleaseGrace)))
		require.False(h.t, x.quiet && s.End.Error != nil, "an undisturbed scatter ended with %+v", s.End.Error)
		h.holder(a.Raw.Lost(), a.Holders, s.Name, x.notes[i], s.End.Error)
		if s.End.Error == nil {
			require.False(h.t, x.rogue[i], "a range outside the advertisement ended well")
			h.ends[s.Mode+" raw"]++
			continue
		}
		h.ends["raw: "+s.End.Error.Name]++
		for _, o := range a.Holders {
			require.True(h.t, s.Mode == wire.ModeRead || o.Event.TransferID != s.Name || o.Event.Error != nil || s.End.Error.MayHaveWritten,
				"the writer lost sight of its good end and says that nothing was written: %+v", s.End.Error)
		}
		if s.End.Error.Code == fault.OutOfBounds && x.rogue[i] {
			continue
		}
		h.readerError(s.End.Error)
	}
}
