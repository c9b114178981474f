package blockdb

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// model is the naive account of one cache: a map a block.
type model struct {
	state  map[uint32]State
	gen    map[uint32]uint64
	blocks map[uint64][]uint32 // open leases
	lgen   map[uint64]uint64
}

func newModel() *model {
	return &model{map[uint32]State{}, map[uint32]uint64{}, map[uint64][]uint32{}, map[uint64]uint64{}}
}

func (m *model) set(blocks []uint32, s State, gen uint64) {
	for _, b := range blocks {
		m.state[b], m.gen[b] = s, gen
		if s == Free {
			delete(m.gen, b)
			delete(m.state, b)
		}
	}
}

// take says how a step that takes blocks must end.
func (m *model) take(blocks []uint32) fault.Code {
	seen := map[uint32]bool{}
	for _, b := range blocks {
		if seen[b] {
			return fault.InvalidArgument
		}
		seen[b] = true
		if s := m.state[b]; s != Free && s != Committed {
			return fault.BlocksBusy
		}
	}
	return 0
}

// TestRandomStepsAgainstAModel: random steps, with restarts, detaches and partial vouching between them, have the
// same results and leave the same states as the model.
func TestRandomStepsAgainstAModel(t *testing.T) {
	const blocks = 40
	rng, _ := seeded(t)
	o := memOptions()
	d, _ := open(t, o)
	s := spec("a", blocks)
	c, _ := attach(t, d, s)
	m := newModel()
	next := uint64(1)
	used := map[uint64]bool{} // generations
	some := func() (out []uint32) {
		for range 1 + rng.IntN(5) {
			out = append(out, uint32(rng.IntN(blocks)))
		}
		return out
	}
	anyLease := func() uint64 {
		for id := range m.blocks {
			return id
		}
		return 0
	}
	for step := range 6000 {
		what := rng.IntN(100)
		switch {
		case what < 35:
			b := some()
			want := m.take(b)
			g, err := c.Grant(write(next, b...))
			require.Equal(t, want, fault.CodeOf(err), "step %d: %v", step, err)
			if err == nil {
				require.False(t, used[g], "generation %d again", g)
				used[g] = true
				m.set(b, Leased, g)
				m.blocks[next], m.lgen[next] = b, g
			}
			next++
		case what < 60:
			id := anyLease()
			var want fault.Code
			if b := m.blocks[id]; b == nil {
				want = fault.NotFound
			} else if m.state[b[0]] == Revoking {
				want = fault.LeaseRevoked
			}
			err := c.Commit(lid(id), CommitRecord{})
			require.Equal(t, want, fault.CodeOf(err), "step %d", step)
			if err == nil {
				m.set(m.blocks[id], Committed, m.lgen[id])
				delete(m.blocks, id)
			}
		case what < 70:
			id := anyLease()
			err := c.Revoke(lid(id))
			require.Equal(t, m.blocks[id] == nil, err != nil, "step %d", step)
			m.set(m.blocks[id], Revoking, m.lgen[id])
		case what < 85:
			id := anyLease()
			err := c.Free(lid(id))
			require.Equal(t, m.blocks[id] == nil, err != nil, "step %d", step)
			m.set(m.blocks[id], Free, 0)
			delete(m.blocks, id)
		case what < 92:
			b := some()
			err := c.Evict(b)
			require.Equal(t, m.take(b), fault.CodeOf(err), "step %d", step)
			if err == nil {
				m.set(b, Free, 0)
			}
		case what < 97:
			b := some()
			g, err := c.Publish(b, nil)
			require.Equal(t, m.take(b), fault.CodeOf(err), "step %d", step)
			if err == nil {
				used[g] = true
				m.set(b, Committed, g)
			}
		default:
			if len(m.blocks) > 0 && rng.IntN(2) == 0 || rng.IntN(2) == 0 {
				torn := len(m.blocks)
				var rec Recovery
				d, rec = reopen(t, d)
				require.Equal(t, torn, rec.OpenLeases)
				require.Empty(t, rec.Reason)
				for id, b := range m.blocks {
					m.set(b, Free, 0)
					delete(m.blocks, id)
				}
			} else if len(m.blocks) == 0 {
				require.NoError(t, c.Detach())
			} else {
				require.ErrorIs(t, c.Detach(), fault.ErrBlocksBusy)
				continue
			}
			var vouch []Vouch
			for b, g := range m.gen {
				switch rng.IntN(8) {
				case 0:
					m.set([]uint32{b}, Free, 0) // forgotten
				case 1:
					vouch = append(vouch, Vouch{b, g + 1})
					m.set([]uint32{b}, Free, 0)
				default:
					vouch = append(vouch, Vouch{b, g})
				}
			}
			c, _ = attach(t, d, s, vouch...)
		}
		if step%7 == 0 {
			compareModel(t, c, m, fmt.Sprint("step ", step))
		}
	}
	compareModel(t, c, m, "end")
}

func compareModel(t *testing.T, c *Cache, m *model, when string) {
	committed := 0
	for b := range c.NumBlocks() {
		r, err := c.State(b)
		require.NoError(t, err)
		require.Equal(t, m.state[b], r.State, "%s: block %d", when, b)
		require.Equal(t, m.gen[b], r.Generation, "%s: block %d", when, b)
		if r.State == Committed {
			committed++
		}
	}
	require.Equal(t, committed, c.Committed(), when)
	require.Equal(t, len(m.blocks), len(c.leases), when)
}
