package xfer

import "github.com/kvxfer/kvxfer/xfer/fair"

// slots are a link's operations in flight. Those of one sender are linked, so that a transfer that is cancelled among a thousand
// looks at its own.
type slots struct {
	all    []slot
	free   []uint32
	flying int
	bytes  uint64 // of what is flying
}

// slot is an operation in flight; its index and age make the operation's id.
type slot struct {
	owner        *sender
	part         outPart
	bytes        uint64
	flight       fair.Flight
	age          uint32
	older, newer uint32 // of the same sender: slots, plus 1; 0: none
}

func opID(slot, age uint32) uint64 { return uint64(age)<<32 | uint64(slot) }

// acquire takes a slot for an operation and returns the operation's id.
func (t *slots) acquire(s *sender, part outPart, bytes uint64, flight fair.Flight) uint64 {
	var i uint32
	if n := len(t.free); n > 0 {
		i, t.free = t.free[n-1], t.free[:n-1]
	} else {
		i = uint32(len(t.all))
		t.all = append(t.all, slot{})
	}
	x := &t.all[i]
	x.owner, x.part, x.bytes, x.flight = s, part, bytes, flight
	x.older, x.newer = s.newest, 0
	if x.older != 0 {
		t.all[x.older-1].newer = i + 1
	}
	s.newest = i + 1
	s.flying++
	t.flying++
	t.bytes += bytes
	return opID(i, x.age)
}

// posted says whether the id is of an operation in flight.
func (t *slots) posted(id uint64) bool {
	i, age := uint32(id), uint32(id>>32)
	return int(i) < len(t.all) && t.all[i].owner != nil && t.all[i].age == age
}

// release frees the slot of an operation that has ended or was not taken.
func (t *slots) release(i uint32) (*sender, outPart, fair.Flight) {
	x := &t.all[i]
	s := x.owner
	if x.older != 0 {
		t.all[x.older-1].newer = x.newer
	}
	if x.newer != 0 {
		t.all[x.newer-1].older = x.older
	} else {
		s.newest = x.older
	}
	x.owner = nil
	x.age++
	t.free = append(t.free, i)
	s.flying--
	t.flying--
	t.bytes -= x.bytes
	return s, x.part, x.flight
}

// ids are a sender's operations in flight.
func (t *slots) ids(s *sender) []uint64 {
	out := make([]uint64, 0, s.flying)
	for i := s.newest; i != 0; i = t.all[i-1].older {
		out = append(out, opID(i-1, t.all[i-1].age))
	}
	return out
}
