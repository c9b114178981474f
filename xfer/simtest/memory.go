package simtest

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma"
)

// memory is a client's region, outside the Go heap. Close tells the client but leaves it mapped, so that late bytes are
// found and do not end the process. It implements xfer.Mapping.
type memory struct {
	bytes   []byte
	ino     uint64
	onClose func()
}

func newMemory(n, ino uint64, onClose func()) (*memory, error) {
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	return &memory{bytes: b, ino: ino, onClose: onClose}, err
}

func (m *memory) Memory() rdma.Memory {
	return rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(&m.bytes[0]), Len: uint64(len(m.bytes)), Name: "sim"}
}

func (m *memory) Object() (dev, ino uint64) { return 1, m.ino }

func (m *memory) Close() error {
	m.onClose()
	return nil
}

func (m *memory) free() { _ = unix.Munmap(m.bytes) }

// unmapped gives every block an image: nothing may touch the memory any more.
func (c *Client) unmapped() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return // its heir has the memory
	}
	for b := range c.geo.NumBlocks {
		c.check(b)
		c.scribble(b, givenBack)
	}
	c.gone = true
}

// planes calls f for the part of a block in each plane of each layer.
func (c *Client) planes(block uint32, f func([]byte)) {
	for layer := range c.geo.Layout.Layers {
		for plane := range c.geo.Layout.Planes() {
			off := c.geo.Offset(layer, plane, block)
			f(c.mem.bytes[off : off+c.geo.Layout.PlaneBlockBytes()])
		}
	}
}

// layerOf is a layer's part of what Block returns.
func (c *Client) layerOf(block []byte, layer uint32) []byte {
	n := c.geo.Layout.PieceBytes()
	return block[uint64(layer)*n:][:n]
}

// Block copies a block's bytes, layer after layer.
func (c *Client) Block(block uint32) []byte {
	out := make([]byte, 0, c.geo.Layout.BlockBytes())
	c.planes(block, func(b []byte) { out = append(out, b...) })
	return out
}

// The top bit of every byte that a client writes says whether the block was given back to it as a source: such a byte at
// a peer was read after the engine had released the source.
const givenBack = 0x80

// scribble writes fresh random bytes into a block; they are its image. The caller holds c.mu or is alone.
func (c *Client) scribble(block uint32, mark byte) {
	c.planes(block, func(b []byte) { pattern(c.rng, b, mark) })
	c.images[block] = c.Block(block)
	delete(c.generations, block)
}

// pattern fills b with random bytes that carry a mark, or none.
func pattern(rng *rand.Rand, b []byte, mark byte) {
	for i := 0; i < len(b); i += 8 {
		x := rng.Uint64()
		for k := range b[i:min(i+8, len(b))] {
			b[i+k] = byte(x>>(8*k))&^givenBack | mark
		}
	}
}

// marked says whether a byte of b was written by an owner that had been given it back.
func marked(b []byte) bool {
	return slices.ContainsFunc(b, func(x byte) bool { return x&givenBack != 0 })
}

// readLate looks at a block that a peer's bytes may have reached. The caller holds c.mu.
func (c *Client) readLate(block uint32) {
	if !c.gone && marked(c.Block(block)) {
		c.w.T.Errorf("read too late: block %d of %s has bytes that its source's owner wrote after the source was released", block, c.Spec.Name)
	}
}

// fresh makes a block's bytes ones that were not given back. The caller holds c.mu.
func (c *Client) fresh(block uint32) {
	if marked(c.Block(block)) {
		c.scribble(block, 0)
	}
}

// Check compares every image with the memory.
func (c *Client) Check() {
	c.w.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for b := range c.geo.NumBlocks {
		c.check(b)
	}
}

// check compares a block with its image and then forgets a difference, so that it is told once.
func (c *Client) check(block uint32) {
	c.w.T.Helper()
	want := c.images[block]
	if want == nil || c.lost {
		return
	}
	got := c.Block(block)
	if bytes.Equal(want, got) {
		return
	}
	n, first := 0, -1
	for i := range got {
		if got[i] != want[i] {
			if n++; first < 0 {
				first = i
			}
		}
	}
	c.w.T.Errorf("changed bytes: block %d of %s: %d of %d, the first at %d", block, c.Spec.Name, n, len(got), first)
	c.images[block] = got
}
