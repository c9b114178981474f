package shm

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/eventqueue"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
)

// lone is a target with a window, and the test in the initiator's place.
func lone(t testing.TB, access rdma.Access) (n *node, tgt *target, g *guest, k rdma.Key, mem *fabrictest.Memory) {
	n = newNode(t, Options{})
	tg, par, err := n.Accept(1)
	require.NoError(t, err)
	mem = fabrictest.Alloc(t, 1<<20, 0)
	r := register(t, n, mem.Host("mem"))
	k, err = tg.Grant(rdma.Window{Region: r, Access: access, Bounds: rdma.Spans{{Len: 1 << 20}}})
	require.NoError(t, err)
	return n, tg.(*target), newGuest(t, n, par), k, mem
}

func frame(f opFrame, descs ...desc) []byte {
	f.count = uint16(len(descs))
	b := f.append(nil)
	for _, d := range descs {
		b = d.append(b)
	}
	return b
}

func regionBytes(kind rdma.MemoryKind, number uint32, addr, n uint64) []byte {
	return (&regionFrame{memory: kind, number: number, addr: addr, len: n}).append(nil)
}

// Whatever no correct peer sends ends its session, with its code, and nothing else: no descriptor or mapping stays, no byte
// changes, and the node goes on.
func TestViolationsEndTheSession(t *testing.T) {
	good := fabrictest.Alloc(t, 1<<20, 0)
	fabrictest.Fill(good.Bytes(), fabrictest.ClassSource, 3)
	mem := good.Host("")
	open, err := unix.MemfdCreate("unsealed", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	defer unix.Close(open)
	require.NoError(t, unix.Ftruncate(open, 1<<20))
	file, err := os.Create(filepath.Join(t.TempDir(), "file"))
	require.NoError(t, err)
	defer file.Close()
	var pipe [2]int
	require.NoError(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	is := func(fds ...int) []int { return fds }
	region := regionBytes(rdma.MemoryHost, 1, mem.Addr, 1<<20)
	type message struct {
		b   []byte
		fds []int
	}
	for name, messages := range map[string]func(k uint64, word uint64) []message{
		"kind": func(uint64, uint64) []message { return []message{{b: []byte{99, 0, 0, 0}}} },
		"a target's frame": func(uint64, uint64) []message {
			return []message{{b: append(appendList(nil, kindResult, 1), make([]byte, 24)...)}}
		},
		"short":     func(uint64, uint64) []message { return []message{{b: []byte{1}}} },
		"too large": func(uint64, uint64) []message { return []message{{b: make([]byte, maxMessage+1)}} },
		"a second region of a number": func(uint64, uint64) []message {
			return []message{{region, is(mem.FD)}, {region, is(mem.FD)}}
		},
		"no descriptor":      func(uint64, uint64) []message { return []message{{b: region}} },
		"descriptors beside": func(uint64, uint64) []message { return []message{{region, is(mem.FD, mem.FD)}} },
		"a descriptor with nothing": func(k uint64, _ uint64) []message {
			return []message{{frame(opFrame{kind: kindRead, frames: 1, seq: 1, key: k}), is(mem.FD)}}
		},
		"memory unsealed":  func(uint64, uint64) []message { return []message{{region, is(open)}} },
		"memory of a disk": func(uint64, uint64) []message { return []message{{region, is(int(file.Fd()))}} },
		"memory of a pipe": func(uint64, uint64) []message { return []message{{region, is(pipe[0])}} },
		"memory too small": func(uint64, uint64) []message {
			return []message{{regionBytes(rdma.MemoryHost, 1, 0, 1<<30), is(mem.FD)}}
		},
		"memory of a kind": func(uint64, uint64) []message { return []message{{regionBytes(rdma.MemoryCUDA, 1, 0, 1), is(mem.FD)}} },
		"process memory, memfd": func(uint64, uint64) []message {
			return []message{{regionBytes(rdma.MemoryProcess, 1, 0, 1), is(mem.FD)}}
		},
		"drop of nothing": func(uint64, uint64) []message { return []message{{b: appendDrop(nil, 4)}} },
		"write from no region": func(k, w uint64) []message {
			return []message{{b: frame(opFrame{kind: kindWrite, frames: 1, seq: 1, key: k, total: 8, region: 3, word: w}, desc{len: 8})}}
		},
		"write from outside the region": func(k, w uint64) []message {
			return []message{{region, is(mem.FD)}, {b: frame(opFrame{kind: kindWrite, frames: 1, seq: 1, key: k, total: 8, region: 1, word: w}, desc{local: 1<<20 - 7, len: 8})}}
		},
		"write from an offset that wraps": func(k, w uint64) []message {
			return []message{{region, is(mem.FD)}, {b: frame(opFrame{kind: kindWrite, frames: 1, seq: 1, key: k, total: 8, region: 1, word: w}, desc{local: ^uint64(0) - 3, len: 8})}}
		},
		"a slot that is not there": func(k, w uint64) []message {
			return []message{{region, is(mem.FD)}, {b: frame(opFrame{kind: kindWrite, frames: 1, seq: 1, key: k, total: 8, region: 1, slot: guestSlots, word: w}, desc{len: 8})}}
		},
		"a word that is no permission": func(k, _ uint64) []message {
			return []message{{region, is(mem.FD)}, {b: frame(opFrame{kind: kindWrite, frames: 1, seq: 1, key: k, total: 8, region: 1, word: 6}, desc{len: 8})}}
		},
		"an operation twice": func(k, _ uint64) []message {
			return []message{{b: frame(opFrame{kind: kindRead, frames: 1, seq: 2, key: k})}, {b: frame(opFrame{kind: kindRead, frames: 1, seq: 2, key: k})}}
		},
		"a frame without its first": func(k, _ uint64) []message {
			return []message{{b: frame(opFrame{kind: kindRead, frames: 2, index: 1, seq: 2, key: k, total: 2}, desc{len: 1})}}
		},
		"a frame of another key": func(k, _ uint64) []message {
			return []message{{b: frame(opFrame{kind: kindRead, frames: 2, seq: 2, key: k, total: 2}, desc{len: 1})},
				{b: frame(opFrame{kind: kindRead, frames: 2, index: 1, seq: 2, key: k + 1, total: 2}, desc{len: 1})}}
		},
		"more than its total": func(k, _ uint64) []message {
			return []message{{b: frame(opFrame{kind: kindRead, frames: 1, seq: 2, key: k, total: 2}, desc{len: 3})}}
		},
		"sums that wrap": func(k, _ uint64) []message {
			return []message{{b: frame(opFrame{kind: kindRead, frames: 1, seq: 2, key: k, total: 2}, desc{len: ^uint64(0)}, desc{len: 3})}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			fds, maps := openFDs(t), mapped(t)
			t.Run("session", func(t *testing.T) {
				n, tgt, g, k, mem := lone(t, rdma.AccessWrite)
				before := append([]byte(nil), mem.Bytes()...)
				word := g.own.slots[0].open(0)
				for _, m := range messages(uint64(k), word) {
					_, _, _ = g.WriteMsgUnix(m.b, unix.UnixRights(m.fds...), nil) // it may be closed already
				}
				down := n.next(t, rdma.EventDown)
				assert.Contains(t, []fault.Code{fault.ProtocolViolation}, down.Status, down.Status.String())
				ends(t, g.UnixConn)
				assert.Empty(t, fabrictest.Diff(before, mem.Bytes()))
				require.NoError(t, tgt.Fence(k))
				require.NoError(t, tgt.Close())
				a := newNode(t, Options{})
				connect(t, a, n, 2)
			})
			eventually(t, "descriptors and mappings to go", func() bool { return openFDs(t) <= fds && mapped(t) <= maps })
		})
	}
}

// A guest that keeps the protocol is served: the table above fails for its own reasons.
func TestGuestIsServed(t *testing.T) {
	n, _, g, k, mem := lone(t, rdma.AccessWrite)
	src := fabrictest.Alloc(t, 4096, 0)
	fabrictest.Fill(src.Bytes(), fabrictest.ClassSource, 3)
	send(t, g.UnixConn, regionBytes(rdma.MemoryHost, 1, src.Host("").Addr, 4096), src.Host("").FD)
	word := g.own.slots[3].open(0)
	f := opFrame{kind: kindWrite, frames: 1, seq: 1, key: uint64(k), tag: 77, total: 4096, region: 1, slot: 3, word: word}
	send(t, g.UnixConn, frame(f, desc{0, 8192, 4096}))
	assert.Equal(t, uint64(77), n.next(t, rdma.EventArrival).Tag)
	assert.Empty(t, fabrictest.Diff(src.Bytes(), mem.Bytes()[8192:][:4096]))
	// The same again with a permission that is taken back before it comes.
	g.own.slots[3].set(slotStale)
	f.seq = 2
	send(t, g.UnixConn, frame(f, desc{0, 0, 4096}))
	b := make([]byte, maxMessage)
	var codes []fault.Code
	for len(codes) < 2 {
		k, err := g.Read(b)
		require.NoError(t, err)
		items, _, err := parseList(b[:k], resultLen)
		require.NoError(t, err)
		for ; len(items) > 0; items = items[resultLen:] {
			r, err := parseResult(items)
			require.NoError(t, err)
			codes = append(codes, r.status)
		}
	}
	assert.Equal(t, []fault.Code{0, fault.Cancelled}, codes)
	// And frames that are fewer bytes than they said.
	word = g.own.slots[4].open(0)
	send(t, g.UnixConn, frame(opFrame{kind: kindWrite, frames: 1, seq: 3, key: uint64(k), total: 10, region: 1, slot: 4, word: word}, desc{0, 0, 5}))
	k2, err := g.Read(b)
	require.NoError(t, err)
	items, _, err := parseList(b[:k2], resultLen)
	require.NoError(t, err)
	r, err := parseResult(items)
	require.NoError(t, err)
	assert.Equal(t, fault.ProtocolViolation, r.status)
}

// host is an initiator with the test in the target's place.
func TestViolationsOfATarget(t *testing.T) {
	list := func(k frameKind, items ...[]byte) []byte {
		b := appendList(nil, k, len(items))
		for _, x := range items {
			b = append(b, x...)
		}
		return b
	}
	mem := fabrictest.Alloc(t, 4096, 0)
	for name, say := range map[string]func(s *target) []byte{
		"an initiator's frame":     func(*target) []byte { return frame(opFrame{kind: kindRead, frames: 1, seq: 1}) },
		"a result of no operation": func(*target) []byte { return list(kindResult, (&result{seq: 900}).append(nil)) },
		"a result of a READ":       func(*target) []byte { return list(kindResult, (&result{seq: 1}).append(nil)) },
		"an answer to a WRITE":     func(*target) []byte { return list(kindAnswer, (&answer{seq: 2}).append(nil)) },
		"an answer out of turn":    func(*target) []byte { return list(kindAnswer, (&answer{seq: 1, index: 1}).append(nil)) },
		"success with other bytes": func(*target) []byte { return list(kindResult, (&result{seq: 2, bytes: 3}).append(nil)) },
		"a slot that is not there": func(*target) []byte {
			return list(kindAnswer, (&answer{seq: 1, slot: windowSlots, word: 5}).append(nil))
		},
		"a permission that is none": func(*target) []byte { return list(kindAnswer, (&answer{seq: 1, word: 4}).append(nil)) },
		"no items":                  func(*target) []byte { return appendList(nil, kindAnswer, 0) },
		"region too small for the READ": func(s *target) []byte {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.said = append(s.said, notice{regionFrame{memory: rdma.MemoryHost, number: 9, len: 10}, dup(t, mem.Host("").FD)})
			return list(kindAnswer, (&answer{seq: 1, region: 9, word: 5}).append(nil))
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, 1<<20, Options{}, Options{})
			p.tgt.mu.Lock()
			p.tgt.load = maxLoad // it takes nothing
			p.tgt.mu.Unlock()
			p.post(t, read(1, 1, p.srcR, rdma.Range{Len: 4096}), write(1, 2, p.srcR, rdma.Range{Len: 4096}))
			b := say(p.tgt)
			p.tgt.kick()
			require.NoError(t, p.tgt.conn.SetWriteDeadline(time.Now().Add(patience)))
			_, _, err := p.tgt.conn.WriteMsgUnix(b, nil, nil)
			require.NoError(t, err)
			for range 2 {
				assert.Equal(t, fault.PeerLost, p.a.next(t, rdma.EventCompletion).Status)
			}
			assert.Equal(t, fault.ProtocolViolation, p.a.next(t, rdma.EventDown).Status)
		})
	}
}

func dup(t testing.TB, fd int) int {
	n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	require.NoError(t, err)
	return n
}

// A peer that asks and never listens is held back: what this node keeps for it has a bound, and nothing waits for it.
func TestAPeerThatDoesNotReadIsHeldBack(t *testing.T) {
	_, tgt, g, k, _ := lone(t, rdma.AccessRead)
	require.NoError(t, g.SetWriteDeadline(time.Now().Add(2*time.Second)))
	var err error
	for seq := uint64(1); err == nil; seq++ {
		_, _, err = g.WriteMsgUnix(frame(opFrame{kind: kindRead, frames: 1, seq: seq, key: uint64(k), total: 1}, desc{len: 1}), nil, nil)
		require.Less(t, seq, uint64(1<<20), "the target takes requests without end")
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	tgt.mu.Lock()
	assert.LessOrEqual(t, len(tgt.answers), maxLoad)
	tgt.mu.Unlock()
	require.NoError(t, tgt.Fence(k))
	require.NoError(t, tgt.Close())
}

// A peer that writes one byte again and again does not fill this node with arrivals.
func TestArrivalsThatNobodyPollsHoldThePeerBack(t *testing.T) {
	n, tgt, g, k, _ := lone(t, rdma.AccessWrite)
	src := fabrictest.Alloc(t, 4096, 0).Host("")
	send(t, g.UnixConn, regionBytes(rdma.MemoryHost, 1, src.Addr, 4096), src.FD)
	word := g.own.slots[0].open(0)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		b := make([]byte, maxMessage)
		for {
			if _, err := g.Read(b); err != nil {
				return
			}
		}
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for seq := uint64(1); seq < 3*eventqueue.MaxEvents; {
			var b []byte
			for range 256 {
				b = append(b, frame(opFrame{kind: kindWrite, frames: 1, seq: seq, key: uint64(k), total: 1, region: 1, word: word}, desc{len: 1})...)
				seq++
			}
			if _, _, err := g.WriteMsgUnix(b, nil, nil); err != nil {
				return
			}
		}
	}()
	eventually(t, "a full queue", func() bool { return n.events.Len() >= eventqueue.MaxEvents })
	require.NoError(t, tgt.Fence(k))
	require.NoError(t, tgt.Close())
	<-sent
	<-gone
	assert.LessOrEqual(t, n.events.Len(), eventqueue.MaxEvents+256)
}

// FuzzSession gives a target messages of a peer that passed its hello.
func FuzzSession(f *testing.F) {
	write := frame(opFrame{kind: kindWrite, frames: 1, seq: 1, key: 1, tag: 2, total: 8, region: 1, slot: 0, word: 5}, desc{0, 0, 8})
	f.Add(write)
	f.Add(frame(opFrame{kind: kindRead, frames: 1, seq: 1, key: 2, total: 8}, desc{0, 0, 8}))
	f.Add(append(regionBytes(rdma.MemoryHost, 7, 0, 8), appendDrop(nil, 1)...))
	f.Add(append(write, write...))
	n, err := New(Options{Path: filepath.Join(f.TempDir(), "s")})
	require.NoError(f, err)
	f.Cleanup(func() { _ = n.Close() })
	mem := fabrictest.Alloc(f, 4096, 0)
	node := &node{Provider: n}
	r := register(f, node, mem.Host("m"))
	id := rdma.SessionID(0)
	f.Fuzz(func(t *testing.T, b []byte) {
		id++
		tgt, par, err := n.Accept(id)
		require.NoError(t, err)
		for _, a := range []rdma.Access{rdma.AccessWrite, rdma.AccessRead} {
			_, err = tgt.Grant(rdma.Window{Region: r, Access: a, Bounds: rdma.Spans{{Len: 4096}}})
			require.NoError(t, err)
		}
		g := newGuest(t, node, par)
		send(t, g.UnixConn, regionBytes(rdma.MemoryHost, 1, mem.Host("").Addr, 4096), mem.Host("").FD)
		g.own.slots[0].open(0)
		if len(b) > 0 && len(b) <= maxMessage {
			_, _, _ = g.WriteMsgUnix(b, nil, nil)
		}
		_ = g.CloseWrite()
		ends(t, g.UnixConn)
		require.NoError(t, tgt.Close())
		require.NoError(t, mem.GuardsIntact())
		var buf [64]rdma.Event
		for n.Poll(buf[:]) > 0 {
		}
	})
}

// FuzzFrames: parsers take anything, and what they take is what was written.
func FuzzFrames(f *testing.F) {
	f.Add(frame(opFrame{kind: kindWrite, frames: 1, seq: 1, total: 8}, desc{1, 2, 8}))
	f.Add(regionBytes(rdma.MemoryHost, 1, 2, 3))
	f.Add(append(appendList(nil, kindAnswer, 1), (&answer{seq: 1, word: 9}).append(nil)...))
	f.Add(append(appendList(nil, kindResult, 1), (&result{seq: 1, wrote: true}).append(nil)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, descs, rest, err := parseOp(b, nil); err == nil {
			again := o.append(nil)
			for _, d := range descs {
				again = d.append(again)
			}
			require.Equal(t, b[:len(b)-len(rest)], again)
		}
		if r, rest, err := parseRegion(b); err == nil && frameKind(b[0]) == kindRegion {
			require.Equal(t, b[:len(b)-len(rest)], r.append(nil))
		}
		if n, rest, err := parseDrop(b); err == nil && frameKind(b[0]) == kindDrop {
			require.Equal(t, b[:len(b)-len(rest)], appendDrop(nil, n))
		}
		if items, _, err := parseList(b, answerLen); err == nil {
			for ; len(items) > 0; items = items[answerLen:] {
				if a, err := parseAnswer(items); err == nil {
					require.Equal(t, items[:answerLen], a.append(nil))
				}
			}
		}
		if items, _, err := parseList(b, resultLen); err == nil {
			for ; len(items) > 0; items = items[resultLen:] {
				if r, err := parseResult(items); err == nil {
					require.Equal(t, items[:resultLen], r.append(nil))
				}
			}
		}
		if h, err := parseHello(b); err == nil {
			require.Equal(t, b, h.bytes())
		}
		if p, err := parseParams(b); err == nil {
			require.Equal(t, b[4:], p.bytes()[4:])
		}
		_, _ = parseHelloAnswer(b)
	})
}

// TestGoldenFrames: the bytes of version 1 do not change.
func TestGoldenFrames(t *testing.T) {
	var s secret
	for i := range s {
		s[i] = byte(i)
	}
	var out string
	for _, x := range []struct {
		name string
		b    []byte
	}{
		{"params", (&params{slots: 4096, session: 7, secret: s, path: "/run/shm.sock"}).bytes()},
		{"hello", (&hello{minVersion: 1, maxVersion: 1, slots: 1024, session: 7, secret: s}).bytes()},
		{"hello answer", helloAnswer(fault.PermissionDenied)},
		{"write", frame(opFrame{kind: kindWrite, index: 1, frames: 2, seq: 3, key: 4, tag: 5, total: 600, region: 7, slot: 8, word: 9}, desc{10, 11, 12}, desc{13, 14, 15})},
		{"read", frame(opFrame{kind: kindRead, frames: 1, seq: 3, key: 4, total: 12}, desc{0, 11, 12})},
		{"region", regionBytes(rdma.MemoryHost, 7, 4096, 8192)},
		{"drop", appendDrop(nil, 7)},
		{"result", append(appendList(nil, kindResult, 1), (&result{seq: 3, bytes: 5, status: fault.StaleKey, wrote: true}).append(nil)...)},
		{"answer", append(appendList(nil, kindAnswer, 1), (&answer{seq: 3, index: 1, region: 7, slot: 8, word: 9}).append(nil)...)},
	} {
		out += x.name + "\n" + hex.Dump(x.b)
	}
	const path = "testdata/frames-v1.txt"
	if os.Getenv("KVXFER_UPDATE") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(out), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, string(want), out)
}

// The bytes of a page are what two processes agree on, so their layout may not depend on a compiler.
func TestPageLayout(t *testing.T) {
	assert.Equal(t, uintptr(slotLen), unsafe.Sizeof(slot{}))
	assert.Equal(t, uintptr(8), unsafe.Offsetof(slot{}.deadline))
	g, err := newPage(3, 5)
	require.NoError(t, err)
	defer g.close()
	g.slots[2].open(77)
	g.in[4].Add(9)
	assert.Equal(t, []byte{5, 0, 0, 0, 0, 0, 0, 0, 77}, g.mem[32:41])
	assert.Equal(t, byte(9), g.mem[3*slotLen+4*countLen])
	_, err = unix.Mmap(g.fd, 0, len(g.mem), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	assert.Error(t, err, "nobody else can write it")
	assert.Error(t, unix.Fallocate(g.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096), "or punch holes into it")
}
