package localapi

import (
	"io"
	"net"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/rawsock"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// readBuffer holds hundreds of PUSH_LAYER frames, so that a burst of them is one system call.
const readBuffer = 32 << 10

// frameReader reads frames and the descriptors that come with them.
//
// A read of a Unix socket that meets bytes with descriptors ends behind these bytes, but it may begin before them. So
// each group of descriptors is kept with the stretch of the stream that its read covered, and belongs to the frame that
// begins in this stretch and says so in its header. A group that no frame can claim any more is a violation.
type frameReader struct {
	in     rawsock.Receiver
	buf    []byte
	r, w   int    // buf[r:w] is read and not consumed
	pos    uint64 // offset in the stream of buf[r]
	groups []fdGroup
	oob    []byte
	broken error // the connection was closed before it was read
	header [wire.HeaderSize]byte
}

// maxGroups bounds what is kept: the frame that is being read, and the next one if its beginning came in the same read.
const maxGroups = 2

// fdGroup is descriptors that came with a read of the stream's bytes [low, high).
type fdGroup struct {
	low, high uint64
	fds       []int
	lost      bool // not all of them: this process had no room for more
}

func newFrameReader(conn *net.UnixConn) *frameReader {
	f := &frameReader{buf: make([]byte, readBuffer), oob: make([]byte, unix.CmsgSpace(4*int(wire.LocalLimits.FDs)))}
	f.broken = f.in.Init(conn)
	return f
}

// errLostFDs comes with a frame whose descriptors could not be received; the stream goes on behind it.
var errLostFDs = errExhausted("frame")

// next returns a frame and its descriptors, which are the caller's from then on. io.EOF comes back unchanged when the
// stream ends between frames.
func (f *frameReader) next() (wire.Frame, []int, error) {
	start := f.pos
	if _, err := io.ReadFull(f, f.header[:]); err != nil {
		return wire.Frame{}, nil, err
	}
	frame, err := wire.ReadBody(f, f.header[:], wire.LocalLimits)
	if err != nil {
		return wire.Frame{}, nil, err
	}
	var fds []int
	if len(f.groups) > 0 && f.groups[0].low <= start && start < f.groups[0].high && frame.FDs > 0 {
		g := f.groups[0]
		fds, f.groups = g.fds, f.groups[1:]
		if g.lost {
			closeAll(fds)
			return frame, nil, errLostFDs
		}
	}
	if len(fds) != int(frame.FDs) {
		closeAll(fds)
		return wire.Frame{}, nil, violation("fd_count", "%d came with the frame, its header says %d", len(fds), frame.FDs)
	}
	if len(f.groups) > 0 && f.groups[0].high <= f.pos {
		return wire.Frame{}, nil, violation("fd_count", "descriptors came that no frame's header counts")
	}
	return frame, fds, nil
}

// Read fills p from the stream; what is at least as large as the buffer is read past it.
func (f *frameReader) Read(p []byte) (int, error) {
	if f.r == f.w && len(p) >= len(f.buf) {
		n, err := f.receive(p, f.pos)
		f.pos += uint64(n)
		return n, err
	}
	if f.r == f.w {
		n, err := f.receive(f.buf, f.pos)
		f.r, f.w = 0, n
		if err != nil {
			f.w = 0
			return 0, err
		}
	}
	n := copy(p, f.buf[f.r:f.w])
	f.r += n
	f.pos += uint64(n)
	return n, nil
}

// receive reads bytes that begin at offset low of the stream.
func (f *frameReader) receive(p []byte, low uint64) (int, error) {
	if f.broken != nil {
		return 0, f.broken
	}
	n, oobn, flags, err := f.in.Receive(p, f.oob)
	fds, parseErr := rights(f.oob[:oobn])
	// The kernel gives as many as this process may have, and the buffer has room for a frame's most.
	lost := flags&unix.MSG_CTRUNC != 0 && len(fds) < int(wire.LocalLimits.FDs)
	if len(fds) > 0 || lost {
		f.groups = append(f.groups, fdGroup{low: low, high: low + uint64(n), fds: fds, lost: lost})
	}
	switch {
	case len(f.groups) > maxGroups:
		return 0, violation("fd_count", "descriptors came that no frame's header counts")
	case err != nil:
		return 0, err
	case parseErr != nil:
		return 0, fault.Wrap(fault.ProtocolViolation, "frame", parseErr)
	case flags&unix.MSG_CTRUNC != 0 && !lost:
		return 0, violation("fd_count", "more descriptors came than the %d allowed", wire.LocalLimits.FDs)
	}
	return n, nil
}

// rights returns all descriptors in control messages, also beside an error.
func rights(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	var fds []int
	for i := range msgs {
		if msgs[i].Header.Level == unix.SOL_SOCKET && msgs[i].Header.Type == unix.SCM_RIGHTS {
			got, e := unix.ParseUnixRights(&msgs[i])
			fds = append(fds, got...)
			if err == nil {
				err = e
			}
		}
	}
	return fds, err
}

// close closes every descriptor that no frame took.
func (f *frameReader) close() {
	for _, g := range f.groups {
		closeAll(g.fds)
	}
	f.groups = nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

func violation(field, format string, args ...any) error {
	e := fault.New(fault.ProtocolViolation, "frame", format, args...)
	e.Field = field
	return e
}
