package softnic_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

func TestBytesMove(t *testing.T) {
	r := newRig(t)
	r.connect()
	fill(r.a.mem, 1)
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
	r.a.expect(1, nic.Success)
	require.Equal(t, r.a.mem, r.b.mem)

	fill(r.b.mem, 2)
	r.a.post(nic.Read, 2, 0, size, addr(r.b.mem), r.b.mr.RKey())
	r.a.expect(2, nic.Success)
	require.Equal(t, r.b.mem, r.a.mem)

	r.b.recv(7, 100, 9000)
	r.a.post(nic.Send, 3, 5, 8500, 0, 0)
	c := r.b.wait()
	require.Equal(t, nic.Completion{ID: 7, QPN: r.b.qp.Num(), Bytes: 8500, Recv: true}, c)
	r.a.expect(3, nic.Success)
	require.Equal(t, r.a.mem[5:8505], r.b.mem[100:8600])
}

// TestFaultyWires moves bytes both ways, by WRITE, READ and SEND, over wires that lose, double, delay and reorder; all arrive once.
func TestFaultyWires(t *testing.T) {
	r := newRig(t)
	g := rand.New(rand.NewPCG(r.seed, 9))
	faults := softnic.Faults{Delay: 50 * time.Microsecond, Jitter: 50 * time.Microsecond, Loss: 0.02, Double: 0.02, Reorder: 0.02}
	r.there.SetFaults(faults)
	r.back.SetFaults(faults)
	r.connect(func(_ *nic.Path, c *nic.Connection) { c.RNRTimer = 10 })
	const piece = 16 << 10
	// The lower half is written, the upper half read: at each side, so that nothing is source and destination at once.
	ends := [2]*end{r.a, r.b}
	for round := range 6 {
		fill(r.a.mem, uint64(2*round))
		fill(r.b.mem, uint64(2*round+1))
		old := [2][]byte{bytes.Clone(r.a.mem), bytes.Clone(r.b.mem)}
		type span struct{ to, off, from, src, n int }
		var spans []span
		sends := [2]int{}
		for i, e := range ends {
			other := ends[1-i]
			for k := range 10 {
				n := g.IntN(piece + 1)
				off := k * piece
				switch g.IntN(3) {
				case 0:
					e.post(nic.Write, uint64(k), size/2+off, n, addr(other.mem)+uint64(off), other.mr.RKey())
					spans = append(spans, span{1 - i, off, i, size/2 + off, n})
				case 1:
					e.post(nic.Read, uint64(k), size/4+off, n, addr(other.mem)+uint64(size/2+off), other.mr.RKey())
					spans = append(spans, span{i, size/4 + off, 1 - i, size/2 + off, n})
				case 2:
					e.post(nic.Send, uint64(k), size/2+off, n, 0, 0)
					other.recv(uint64(1000+sends[i]), size*3/4+sends[i]*piece, piece)
					spans = append(spans, span{1 - i, size*3/4 + sends[i]*piece, i, size/2 + off, n})
					sends[i]++
				}
			}
		}
		for i, e := range ends {
			next, recv := uint64(0), 0
			for next < 10 || recv < sends[1-i] {
				c := e.wait()
				require.Equal(t, nic.Success, c.Status, "%+v", c)
				if c.Recv {
					require.Equal(t, uint64(1000+recv), c.ID)
					recv++
				} else {
					require.Equal(t, next, c.ID)
					next++
				}
			}
		}
		for _, s := range spans {
			copy(old[s.to][s.off:s.off+s.n], old[s.from][s.src:s.src+s.n])
		}
		require.True(t, bytes.Equal(old[0], r.a.mem) && bytes.Equal(old[1], r.b.mem), "round %d", round)
	}
	for _, w := range []*softnic.Wire{r.there, r.back} {
		s := w.Stats()
		t.Logf("%+v", s)
		assert.NotZero(t, s.Lost)
		assert.NotZero(t, s.Doubled)
		assert.NotZero(t, s.Reordered)
	}
}

// TestPieces gathers from and scatters to several pieces of memory, of several registrations, of odd lengths.
func TestPieces(t *testing.T) {
	r := newRig(t)
	r.connect()
	more := memory(t, size)
	m, err := r.a.dev.Register(ptr(more), size, nic.LocalWrite)
	require.NoError(t, err)
	fill(r.a.mem, 1)
	fill(more, 2)
	sges := []nic.SGE{{Addr: addr(more) + 7, Len: 5001, LKey: m.LKey()}, {Addr: addr(r.a.mem) + 1, Len: 0, LKey: 1}, {Addr: addr(r.a.mem) + 99, Len: 12345, LKey: r.a.mr.LKey()}, {Addr: addr(more) + 9000, Len: 1, LKey: m.LKey()}}
	all := append(append(bytes.Clone(more[7:5008]), r.a.mem[99:12444]...), more[9000])
	post := func(w nic.WR) {
		n, err := r.a.qp.Post([]nic.WR{w}, sges)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		r.a.expect(w.ID, nic.Success)
	}
	post(nic.WR{ID: 1, Op: nic.Write, Remote: addr(r.b.mem) + 3, RKey: r.b.mr.RKey(), Count: 4, Signaled: true})
	require.Equal(t, all, r.b.mem[3:3+len(all)])
	clear(r.a.mem)
	clear(more)
	post(nic.WR{ID: 2, Op: nic.Read, Remote: addr(r.b.mem) + 3, RKey: r.b.mr.RKey(), Count: 4, Signaled: true})
	require.Equal(t, all, append(append(bytes.Clone(more[7:5008]), r.a.mem[99:12444]...), more[9000]))
	clear(more[7:5008])
	require.Equal(t, make([]byte, 3992), more[5008:9000], "nothing beside the pieces")
}

// TestUnsignaled: they say nothing when they succeed, and are over when a later one is; they say it when they fail.
func TestUnsignaled(t *testing.T) {
	r := newRig(t)
	r.connect()
	wrs := make([]nic.WR, 8)
	for i := range wrs {
		wrs[i] = nic.WR{ID: uint64(i), Op: nic.Write, Remote: addr(r.b.mem), RKey: r.b.mr.RKey()}
	}
	wrs[7].Signaled = true
	n, err := r.a.qp.Post(wrs, nil)
	require.NoError(t, err)
	require.Equal(t, 8, n)
	r.a.expect(7, nic.Success)
	r.a.quiet()
	r.there.Cut()
	_, err = r.a.qp.Post(wrs, nil)
	require.NoError(t, err)
	r.a.expect(0, nic.RetriesExceeded)
	for id := uint64(1); id < 8; id++ {
		r.a.expect(id, nic.Flushed)
	}
}

// TestPlacesInQueues: a queue is full until completions are polled, also when everything was done long ago.
func TestPlacesInQueues(t *testing.T) {
	r := newRig(t)
	r.connect()
	one := []nic.WR{{Op: nic.Write, Remote: addr(r.b.mem), RKey: r.b.mr.RKey()}}
	for i := range 256 {
		one[0].Signaled = i == 100
		n, err := r.a.qp.Post(one, nil)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	n, err := r.a.qp.Post(one, nil)
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	require.Zero(t, n)
	r.a.expect(0, nic.Success)
	n, err = r.a.qp.Post(repeat(one[0], 200), nil)
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	require.Equal(t, 101, n)

	ids, sges := make([]uint64, 65), make([]nic.SGE, 65)
	for i := range sges {
		sges[i] = nic.SGE{Addr: addr(r.b.mem), Len: 64, LKey: r.b.mr.LKey()}
	}
	n, err = r.b.qp.PostRecv(ids, sges)
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	require.Equal(t, 64, n)
}

func repeat(w nic.WR, n int) []nic.WR {
	list := make([]nic.WR, n)
	for i := range list {
		list[i] = w
	}
	return list
}

// TestReadsWait: no more READs are out than the connection allows, and what is behind them waits too.
func TestReadsWait(t *testing.T) {
	r := newRig(t)
	r.connect(patient, func(_ *nic.Path, c *nic.Connection) { c.ReadInit = 2 })
	fill(r.b.mem, 1)
	r.there.Hold()
	for id := range uint64(5) {
		r.a.post(nic.Read, id, int(id)*9000, 9000, addr(r.b.mem)+9000*id, r.b.mr.RKey())
	}
	held(t, r.there, 2)
	assert.Never(t, func() bool { return r.there.Stats().Held > 2 }, 50*tick, tick)
	r.there.Release()
	for id := range uint64(5) {
		r.a.expect(id, nic.Success)
	}
	assert.Equal(t, r.b.mem[:45000], r.a.mem[:45000])
}

// TestSendAfterWrites: when a RECEIVE completes, what was written before is there.
func TestSendAfterWrites(t *testing.T) {
	r := newRig(t)
	r.there.SetFaults(softnic.Faults{Loss: 0.05, Reorder: 0.05, ReorderBy: 100 * time.Microsecond})
	r.connect()
	for round := range uint64(20) {
		fill(r.a.mem[:64<<10], round)
		r.b.recv(round, size/2, 64)
		r.a.post(nic.Write, 1, 0, 64<<10, addr(r.b.mem), r.b.mr.RKey())
		r.a.post(nic.Send, 2, 0, 8, 0, 0)
		r.b.expect(round, nic.Success)
		require.True(t, bytes.Equal(r.a.mem[:64<<10], r.b.mem[:64<<10]))
		r.a.expect(1, nic.Success)
		r.a.expect(2, nic.Success)
	}
}

// TestLazyWrites: the writer's completion may come before the bytes; the completion of a RECEIVE behind them, the peer's READ, and
// whatever ends the right to write, come after them.
func TestLazyWrites(t *testing.T) {
	r := newRig(t, func(d *softnic.Device) { d.LazyWrites = 1e6 * bound })
	r.connect()
	for round, see := range []func(){
		func() {
			r.b.recv(5, size/2, 64)
			r.a.post(nic.Send, 2, 0, 8, 0, 0)
			r.b.expect(5, nic.Success)
			r.a.expect(2, nic.Success)
		},
		func() {
			r.a.post(nic.Read, 2, size/2, size/4, addr(r.b.mem), r.b.mr.RKey())
			r.a.expect(2, nic.Success)
			require.True(t, bytes.Equal(r.a.mem[size/2:size*3/4], r.a.mem[:size/4]))
		},
		func() { require.NoError(t, r.b.mr.Close()) },
	} {
		fill(r.a.mem, uint64(round))
		r.a.post(nic.Write, 1, 0, size/4, addr(r.b.mem), r.b.mr.RKey())
		r.a.expect(1, nic.Success)
		require.False(t, bytes.Equal(r.a.mem[:size/4], r.b.mem[:size/4]))
		see()
		require.True(t, bytes.Equal(r.a.mem[:size/4], r.b.mem[:size/4]))
	}
}

func BenchmarkWrite(b *testing.B) {
	f := softnic.New(softnic.Options{Seed: 1})
	var devs [2]nic.Device
	var qps [2]nic.QP
	var mem [2][]byte
	var mrs [2]nic.MR
	for i := range 2 {
		d, err := f.Host(string(rune('a'+i)), softnic.Device{Name: "soft0", Ports: []nic.PortInfo{port(gid4(10, 0, 0, byte(i+1)))}}).Open("soft0")
		require.NoError(b, err)
		defer d.Close()
		mem[i] = make([]byte, size)
		mrs[i], err = d.Register(ptr(mem[i]), size, all)
		require.NoError(b, err)
		qps[i], err = d.NewQP(nic.QPConfig{MaxSend: 64, MaxSGE: 1, MaxSignaled: 64})
		require.NoError(b, err)
		devs[i] = d
	}
	for i := range 2 {
		require.NoError(b, qps[i].Connect(nic.Path{Port: 1, GIDIndex: 1, Global: true, GID: gid4(10, 0, 0, byte(2-i)), MTU: 4096}, nic.Connection{PeerQPN: qps[1-i].Num(), Timeout: 18, Retries: 6, Access: nic.RemoteWrite}))
	}
	b.SetBytes(size)
	b.ReportAllocs()
	done := make([]nic.Completion, 16)
	flying := 0
	for range b.N {
		for flying >= 4 {
			n, err := devs[0].Next(done, 0, time.Second)
			require.NoError(b, err)
			flying -= n
		}
		_, err := qps[0].Post([]nic.WR{{Op: nic.Write, Remote: addr(mem[1]), RKey: mrs[1].RKey(), Count: 1, Signaled: true}}, []nic.SGE{{Addr: addr(mem[0]), Len: size, LKey: mrs[0].LKey()}})
		require.NoError(b, err)
		flying++
	}
	for flying > 0 {
		n, err := devs[0].Next(done, 0, time.Second)
		require.NoError(b, err)
		flying -= n
	}
}
