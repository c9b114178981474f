package localapi

import (
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// fed is a frameReader that is fed through a socket, a burst of frames at a time.
type fed struct {
	t     testing.TB
	in    *frameReader
	out   net.Conn
	burst []byte
	n     int
}

func newFed(t testing.TB, burst int, f wire.Frame) *fed {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	var ends [2]net.Conn
	for i, fd := range pair {
		file := os.NewFile(uintptr(fd), "pair")
		ends[i], err = net.FileConn(file)
		require.NoError(t, err)
		require.NoError(t, file.Close())
		t.Cleanup(func() { _ = ends[i].Close() })
	}
	x := &fed{t: t, in: newFrameReader(ends[0].(*net.UnixConn)), out: ends[1], n: burst}
	t.Cleanup(x.in.close)
	for range burst {
		x.burst = wire.Append(x.burst, f)
	}
	return x
}

func (x *fed) round() {
	if _, err := x.out.Write(x.burst); err != nil {
		x.t.Fatal(err)
	}
	for range x.n {
		if _, _, err := x.in.next(); err != nil {
			x.t.Fatal(err)
		}
	}
}

func blocksFrame(blocks int) wire.Frame {
	return wire.Frame{Kind: wire.KindLease, Request: 1, JSON: []byte(`{"cache":1}`), Array: make([]byte, 4*blocks)}
}

// TestFramesAllocateNothingForABlock: a frame is its JSON and its array, however many blocks are in it. Beside them a frame that is
// larger than the buffer takes several reads.
func TestFramesAllocateNothingForABlock(t *testing.T) {
	for _, blocks := range []int{1, 1000, 10_000} {
		x := newFed(t, 1, blocksFrame(blocks))
		x.round()
		assert.LessOrEqual(t, testing.AllocsPerRun(50, x.round), 16.0, "%d blocks", blocks)
	}
}

// BenchmarkFrames reads bursts of frames of so many blocks from a socket; a burst is one system call where it fits the buffer.
func BenchmarkFrames(b *testing.B) {
	for _, c := range [][2]int{{1, 1}, {1, 1024}, {64, 1}} {
		b.Run(fmt.Sprintf("burst=%d/blocks=%d", c[0], c[1]), func(b *testing.B) {
			x := newFed(b, c[0], blocksFrame(c[1]))
			b.SetBytes(int64(len(x.burst)))
			b.ReportAllocs()
			for b.Loop() {
				x.round()
			}
		})
	}
}
