package protocol

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/testseed"
)

func wholeKinds(effects []WholeEffect) (out []WholeEffectKind) {
	for _, f := range effects {
		out = append(out, f.Kind)
	}
	return out
}

func TestWholeIsOwnedOnce(t *testing.T) {
	w := NewWhole(2, 1)
	claim := func(part int, transfer string, attempt uint32) fault.Code {
		out := w.Step(nil, WholeEvent{Kind: WholeClaim, Part: part, Transfer: transfer, Attempt: attempt})
		require.Len(t, out, 1)
		return out[0].Code
	}
	assert.False(t, w.Claimed())
	assert.Zero(t, claim(1, "a", 1))
	assert.Equal(t, fault.TicketBound, claim(0, "b", 1), "to a part that is not bound yet")
	assert.Equal(t, fault.TicketBound, claim(0, "a", 2), "another attempt is another claim")
	assert.Zero(t, claim(0, "a", 1))
	w.Step(nil, WholeEvent{Kind: WholeRevoke, Code: fault.LeaseRevoked})
	assert.Equal(t, fault.LeaseRevoked, claim(0, "a", 1))
}

func TestWholeCommitsOnAllOrNone(t *testing.T) {
	w := NewWhole(3, 1)
	assert.Empty(t, w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 0, Bytes: 10}))
	out := w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 2, Code: fault.LeaseExpired})
	assert.Equal(t, []WholeEffect{{Kind: WholeEvictPart, Part: 0}, {Kind: WholeRevokePart, Part: 1, Code: fault.LeaseRevoked}}, out)
	// The commit of part 1 crosses its revocation.
	out = w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 1, Bytes: 10})
	assert.Equal(t, []WholeEffect{{Kind: WholeEvictPart, Part: 1}, {Kind: WholeEnd, Part: 2, Code: fault.LeaseExpired, Bytes: 20}}, out)

	w = NewWhole(2, 1)
	w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 0, Bytes: 10})
	out = w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 0, Code: fault.PeerLost})
	assert.Equal(t, []WholeEffect{{Kind: WholeRevokePart, Part: 1, Code: fault.LeaseRevoked}}, out, "the node of a committed part is lost before the end")

	w = NewWhole(2, 1)
	w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 0, Bytes: 10})
	out = w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 1, Bytes: 10})
	assert.Equal(t, []WholeEffectKind{WholeKeepPart, WholeKeepPart, WholeEnd}, wholeKinds(out))
	assert.Empty(t, w.Step(nil, WholeEvent{Kind: WholeRevoke, Code: fault.ClientGone}), "what is over stays so")
	assert.Empty(t, w.Step(nil, WholeEvent{Kind: WholePartEnded, Part: 0, Code: fault.PeerLost}))
}

func TestWholeLayerIsVisibleOnEveryPart(t *testing.T) {
	w := NewWhole(2, 1)
	layer := func(part int, layer uint32) []WholeEffect {
		return w.Step(nil, WholeEvent{Kind: WholeLayer, Part: part, Layer: layer})
	}
	assert.Empty(t, layer(0, 3))
	assert.Empty(t, layer(0, 3), "told twice by one part")
	assert.Equal(t, []WholeEffect{{Kind: WholeVisible, Layer: 3}}, layer(1, 3))
	assert.Empty(t, layer(1, 3))
	assert.Empty(t, layer(0, ^uint32(0)))
}

// TestRandomWholesEnd runs random claims and ends, with every effect carried out late and in any order: one transfer owns
// all parts, the whole ends once, and what is committed then is committed everywhere or nowhere.
func TestRandomWholesEnd(t *testing.T) {
	rng := testseed.New(t)
	for range 3000 {
		n := 1 + rng.IntN(5)
		w := NewWhole(n, 1)
		committed, over := make([]bool, n), make([]bool, n)
		bound := make([]string, n)
		winner, ends := "", 0
		var todo []WholeEvent
		var evict []int
		apply := func(out []WholeEffect, claim string) {
			for _, f := range out {
				switch f.Kind {
				case WholeAnswer:
					if f.Code == 0 {
						require.True(t, winner == "" || winner == claim, "%s owns it, then %s", winner, claim)
						winner, bound[f.Part] = claim, claim
					}
				case WholeRevokePart:
					todo = append(todo, WholeEvent{Kind: WholePartEnded, Part: f.Part, Code: f.Code})
				case WholeEvictPart:
					evict = append(evict, f.Part)
				case WholeEnd:
					ends++
					assert.Equal(t, f.Code != 0, w.Failed())
				}
			}
		}
		ended := func(e WholeEvent) {
			if over[e.Part] { // a part ends once, by itself or as it was asked
				return
			}
			over[e.Part], committed[e.Part] = true, e.Code == 0
			apply(w.Step(nil, e), "")
		}
		for range 40 {
			part := rng.IntN(n)
			switch rng.IntN(8) {
			case 0, 1, 2:
				who := []string{"a", "b"}[rng.IntN(2)]
				apply(w.Step(nil, WholeEvent{Kind: WholeClaim, Part: part, Transfer: who, Attempt: 1}), who)
			case 3, 4:
				if bound[part] != "" {
					ended(WholeEvent{Kind: WholePartEnded, Part: part, Bytes: 1})
				}
			case 5:
				if rng.IntN(6) == 0 {
					ended(WholeEvent{Kind: WholePartEnded, Part: part, Code: fault.PeerLost})
				}
			case 6:
				if rng.IntN(10) == 0 {
					apply(w.Step(nil, WholeEvent{Kind: WholeRevoke, Code: fault.LeaseRevoked}), "")
				}
			default:
				if len(todo) > 0 {
					i := rng.IntN(len(todo))
					e := todo[i]
					todo = slices.Delete(todo, i, i+1)
					ended(e)
				}
			}
		}
		apply(w.Step(nil, WholeEvent{Kind: WholeRevoke, Code: fault.LeaseRevoked}), "")
		for len(todo) > 0 {
			e := todo[0]
			todo = todo[1:]
			ended(e)
		}
		require.Equal(t, 1, ends)
		require.True(t, w.Over())
		for _, p := range evict {
			require.True(t, committed[p])
			committed[p] = false
		}
		for i := range n {
			require.Equal(t, !w.Failed(), committed[i], "part %d", i)
		}
	}
}
