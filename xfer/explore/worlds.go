package explore

import "slices"

// The worlds that are explored in full. Each has one block of two layers, so that a block can be torn.

// limits allows every fault and choice `each` times, but the wall clock's steps: nothing that keeps the rules reads it,
// so they would only multiply the states.
func limits(each uint8) (l [kinds]uint8) {
	for k := Revoke; k < kinds; k++ {
		l[k] = each
	}
	l[StepWall] = 0
	return l
}

// OneLease is a lease and its push.
func OneLease() Config {
	return Config{Mode: Write, Layers: 2, Blocks: 1, Sources: 1, Leases: []LeaseSpec{{Blocks: []uint8{0}}},
		Transfers: []TransferSpec{{Lease: 0, Source: []uint8{0}}}, Limit: limits(1)}
}

// Presented is OneLease with a second source that presents the same ticket, and whose bytes differ.
func Presented() Config {
	c := OneLease()
	c.Sources = 2
	c.Transfers = append(c.Transfers, TransferSpec{Lease: 0, Source: []uint8{1}})
	return c
}

// Retry is OneLease with a second lease on the same block and a second push of the same source block.
func Retry() Config {
	c := OneLease()
	c.Leases = append(c.Leases, LeaseSpec{Blocks: []uint8{0}})
	c.Transfers = append(c.Transfers, TransferSpec{Lease: 1, Source: []uint8{0}})
	return c
}

// Reading is a read lease for one reader and its pull.
func Reading() Config {
	return Config{Mode: Read, Layers: 2, Blocks: 1, Leases: []LeaseSpec{{Blocks: []uint8{0}, Uses: 1}},
		Transfers: []TransferSpec{{Lease: 0}}, Limit: limits(1)}
}

// TwoReaders is a read lease for two.
func TwoReaders() Config {
	c := Reading()
	c.Leases[0].Uses = 2
	c.Transfers = append(c.Transfers, TransferSpec{Lease: 0})
	return c
}

// Weak returns the world on the weakest fabric and with the least prompt log that the rules allow: a chunk may stand
// in the gate for any time, a completion may overtake its bytes, a commit may be lost. Whatever a stronger one does, this
// one can do too.
func (c Config) Weak() Config {
	c.TwoSteps, c.EarlyAck, c.LostSuffix = c.Mode == Write, c.Mode == Write, c.Mode == Write
	c.Ungated = c.Mode == Read
	return c
}

// ByLayer returns the world with a client that hands its layers over one by one, when it likes.
func (c Config) ByLayer() Config {
	c.Layerwise = true
	return c
}

// Short returns the world with transfers whose time ends before their lease's.
func (c Config) Short() Config {
	c.ShortTransfers = true
	return c
}

// With bounds the faults and choices of one run.
func (c Config) With(faults, choices uint8) Config {
	c.Faults, c.Choices = faults, choices
	return c
}

// OnePiece returns the world with blocks of one layer: nothing can be torn, so what two leases, transfers or
// incarnations do to each other is explored at a fraction of the states.
func (c Config) OnePiece() Config {
	c.Layers = 1
	return c
}

// Only returns the world with these faults and choices alone, once each.
func (c Config) Only(ks ...Kind) Config {
	c.Limit = [kinds]uint8{}
	for _, k := range ks {
		c.Limit[k] = 1
	}
	return c.With(uint8(len(ks)), uint8(len(ks)))
}

// RandomWorld makes a larger world: several leases and transfers on the same blocks, and more that goes wrong.
// pick(n) gives a number in [0, n).
func RandomWorld(mode Mode, pick func(n int) int) Config {
	yes := func() bool { return pick(2) == 0 }
	c := Config{Mode: mode, Layers: uint8(1 + pick(3)), Blocks: uint8(2 + pick(3)), Limit: limits(3),
		Faults: uint8(pick(7)), Choices: uint8(pick(5)), Layerwise: yes(), ShortTransfers: yes()}
	c.Limit[StepWall] = 2
	if mode == Write {
		c.Sources = c.Blocks
		c.TwoSteps, c.EarlyAck, c.LostSuffix = yes(), yes(), yes()
	} else {
		c.Ungated = yes()
	}
	some := func(of uint8, n int) (blocks []uint8) { // n different blocks, in any order
		for len(blocks) < n {
			if b := uint8(pick(int(of))); !slices.Contains(blocks, b) {
				blocks = append(blocks, b)
			}
		}
		return blocks
	}
	for range 2 + pick(3) {
		c.Leases = append(c.Leases, LeaseSpec{Blocks: some(c.Blocks, 1+pick(int(c.Blocks))), Uses: uint8(1 + pick(2))})
	}
	for range 2 + pick(5) {
		t := TransferSpec{Lease: uint8(pick(len(c.Leases)))}
		if mode == Write {
			t.Source = some(c.Sources, len(c.Leases[t.Lease].Blocks))
		}
		c.Transfers = append(c.Transfers, t)
	}
	if mode == Write {
		for i := range c.Leases {
			c.Leases[i].Uses = 1
		}
	}
	return c
}
