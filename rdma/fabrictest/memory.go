package fabrictest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma"
)

// Class is the top two bits of every byte of a pattern. It tells from any single byte, wherever it landed, which
// pattern it came from.
type Class byte

// The classes that the suite uses. Bytes of ClassLater are written only after the provider has promised to touch the
// memory no more, so one of them on the other side proves a touch.
const (
	ClassTarget Class = 0 // what memory holds before anything moves
	ClassSource Class = 1 // what operations are meant to move
	ClassLater  Class = 2
	classGuard  Class = 3
)

const (
	classBits = 0x4040404040404040
	lowBits   = 0x3f3f3f3f3f3f3f3f
)

// word is the pattern at 8-byte index i (splitmix64), so that no part of a pattern equals another part.
func word(c Class, seed, i uint64) uint64 {
	z := seed*0x9e3779b97f4a7c15 + (i+1)*0xbf58476d1ce4e5b9
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return (z^z>>31)&lowBits | uint64(c)*classBits
}

// Fill writes the pattern of class c and seed over all of b.
func Fill(b []byte, c Class, seed uint64) {
	var i uint64
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, word(c, seed, i))
		i++
	}
	var tail [8]byte
	binary.LittleEndian.PutUint64(tail[:], word(c, seed, i))
	copy(b, tail[:])
}

// CountClass counts the bytes of class c in b.
func CountClass(b []byte, c Class) int {
	n := 0
	for _, x := range b {
		if Class(x>>6) == c {
			n++
		}
	}
	return n
}

const guardLen = 4096

// Memory is a mapped memfd, as a client's is, with a guard pattern on either side, so that a byte beside a region shows.
type Memory struct {
	fd   int    // the sealed memfd behind all
	all  []byte // guard, memory, guard
	n    int
	lead int // bytes before the memory: the guard and, for misaligned memory, a little more
}

// Alloc maps n bytes of a sealed memfd, whose address is misalign (below a page) off a page boundary.
// They are unmapped when t ends, except after a failure: a provider that failed may still be touching them.
func Alloc(t testing.TB, n, misalign int) *Memory {
	t.Helper()
	m := alloc(t, n, misalign)
	t.Cleanup(func() { m.free(t) })
	return m
}

func alloc(t testing.TB, n, misalign int) *Memory {
	t.Helper()
	lead := guardLen + misalign
	size := (lead + n + guardLen + 4095) &^ 4095
	fd, err := unix.MemfdCreate("fabrictest", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatalf("memfd_create: %v", err)
	}
	if err = unix.Fallocate(fd, 0, 0, int64(size)); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		t.Fatalf("memfd of %d bytes: %v", size, err)
	}
	all, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatalf("mmap of %d bytes: %v", size, err)
	}
	m := &Memory{fd: fd, all: all, n: n, lead: lead}
	Fill(m.all[:lead], classGuard, 1)
	Fill(m.all[lead+n:], classGuard, 2)
	return m
}

func (m *Memory) free(t testing.TB) {
	if t.Failed() {
		return
	}
	if err := unix.Munmap(m.all); err != nil {
		t.Errorf("munmap: %v", err)
	}
	if err := unix.Close(m.fd); err != nil {
		t.Errorf("close of a memfd: %v", err)
	}
}

// Bytes is the memory itself.
func (m *Memory) Bytes() []byte { return m.all[m.lead : m.lead+m.n : m.lead+m.n] }

// Host describes the memory to a provider.
func (m *Memory) Host(name string) rdma.Memory {
	return rdma.Memory{Kind: rdma.MemoryHost, Base: unsafe.Pointer(&m.all[m.lead]), Len: uint64(m.n), Name: name,
		FD: m.fd, Addr: uint64(m.lead)}
}

// GuardsIntact says in an error what was written beside the memory.
func (m *Memory) GuardsIntact() error {
	for i, g := range [...][]byte{m.all[:m.lead], m.all[m.lead+m.n:]} {
		want := make([]byte, len(g))
		Fill(want, classGuard, uint64(i+1))
		if d := Diff(want, g); d != "" {
			return fmt.Errorf("memory beside the region was changed (%s it): %s", [...]string{"before", "behind"}[i], d)
		}
	}
	return nil
}

// protect takes all access to the whole pages inside the memory away, or gives it back.
func (m *Memory) protect(on bool) error {
	from := (m.lead + 4095) &^ 4095
	to := (m.lead + m.n) &^ 4095
	if from >= to {
		return nil
	}
	prot := unix.PROT_READ | unix.PROT_WRITE
	if on {
		prot = unix.PROT_NONE
	}
	return unix.Mprotect(m.all[from:to], prot)
}

// Diff describes how got differs from want, which is as long: "" when it does not.
func Diff(want, got []byte) string {
	if bytes.Equal(want, got) {
		return ""
	}
	first, last, n := -1, 0, 0
	for i := range want {
		if want[i] != got[i] {
			if first < 0 {
				first = i
			}
			last = i
			n++
		}
	}
	if n == 0 {
		return "the bytes changed while they were compared"
	}
	return fmt.Sprintf("%d bytes differ in [%d, %d] of %d; at %d: want %#02x, got %#02x",
		n, first, last, len(want), first, want[first], got[first])
}
