package benchcmd

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
)

// Case is a list of blocks: how many, and the bytes of each.
type Case struct {
	Blocks     int `json:"blocks"`
	BlockBytes int `json:"block_bytes"`
}

// cases are what is measured, small lists first.
var cases = []Case{
	{1, 8}, {1, 4 << 10}, {64, 4 << 10}, {1024, 4 << 10}, {1024, 16 << 10}, {4096, 16 << 10}, {1024, 64 << 10}, {256, 256 << 10}, {64, 1 << 20},
}

// Name is the case as --case takes it: 1x8B, 1024x16KiB, 64x1MiB.
func (c Case) Name() string {
	switch b := c.BlockBytes; {
	case b >= 1<<20:
		return fmt.Sprintf("%dx%dMiB", c.Blocks, b>>20)
	case b >= 1<<10:
		return fmt.Sprintf("%dx%dKiB", c.Blocks, b>>10)
	}
	return fmt.Sprintf("%dx%dB", c.Blocks, c.BlockBytes)
}

// Bytes is what one transfer of the list moves.
func (c Case) Bytes() int { return c.Blocks * c.BlockBytes }

// stride is the distance of two listed blocks in blocks. Neighbours would be merged into one piece, and hide the cost
// of a block.
const stride = 2

// slots is how many blocks the memory on each side has.
func (c Case) slots() int { return c.Blocks * stride }

func caseNames() string {
	names := make([]string, len(cases))
	for i, c := range cases {
		names[i] = c.Name()
	}
	return strings.Join(names, ", ")
}

// chosen are the cases that a list of names means, in the table's order; "" means all.
func chosen(list string) ([]Case, error) {
	if list == "" {
		return cases, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(list, ",") {
		wanted[strings.TrimSpace(name)] = true
	}
	var out []Case
	for _, c := range cases {
		if wanted[c.Name()] {
			out = append(out, c)
			delete(wanted, c.Name())
		}
	}
	for name := range wanted {
		return nil, fmt.Errorf("no case %q, allowed %s", name, caseNames())
	}
	return out, nil
}

// side is which end of a list.
type side uint64

const (
	local  side = 1 // the side that starts the transfer
	remote side = 2
)

// ids are the case's blocks on one side, in the order of the list: every stride-th block, permuted. Each side has its own
// permutation, and every process of a run makes the same ones.
func (c Case) ids(s side) []uint32 {
	rng := rand.New(rand.NewPCG(uint64(s), uint64(c.Blocks)<<32|uint64(c.BlockBytes)))
	out := make([]uint32, c.Blocks)
	for i, p := range rng.Perm(c.Blocks) {
		out[i] = uint32(p * stride)
	}
	return out
}

// writeList writes the same list for the program that measures the limit: offset on the local side, on the remote side,
// and length in bytes, three little-endian uint64 a block.
func (c Case) writeList(path string) error {
	from, to := c.ids(local), c.ids(remote)
	b := make([]byte, 0, 24*c.Blocks)
	for i := range from {
		b = binary.LittleEndian.AppendUint64(b, uint64(from[i])*uint64(c.BlockBytes))
		b = binary.LittleEndian.AppendUint64(b, uint64(to[i])*uint64(c.BlockBytes))
		b = binary.LittleEndian.AppendUint64(b, uint64(c.BlockBytes))
	}
	return os.WriteFile(path, b, 0o600)
}
