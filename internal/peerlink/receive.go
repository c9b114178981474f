package peerlink

import (
	"bufio"
	"errors"
	"io"
	"syscall"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/rawsock"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// PingBit is set in the request ids of PINGs and so in their answers; the handler's own requests leave it clear. The
// ids of the peer's requests are the peer's choice and are repeated as they came.
const PingBit = uint64(1) << 63

// lifeReader notes that bytes came.
type lifeReader struct {
	l  *link
	in io.Reader
}

// reader reads the link's connection. Over TLS the bytes are not those of the socket.
func (l *link) reader() io.Reader {
	if sc, ok := l.conn.(syscall.Conn); ok {
		var r rawsock.Receiver
		if r.Init(sc) == nil {
			return lifeReader{l, &r}
		}
	}
	return lifeReader{l, l.conn}
}

func (r lifeReader) Read(b []byte) (int, error) {
	n, err := r.in.Read(b)
	if n > 0 {
		r.l.heard.Store(true)
	}
	return n, err
}

// limits is what a frame of the peer may hold. A dialer has no array to send but a FIN's notification; whoever can
// dial must not make this node hold a block list's 64 MiB for every link.
func (l *link) limits() wire.Limits {
	lim := wire.PeerLimits
	if !l.dialed {
		lim.Array = wire.MaxNotification
	}
	return lim
}

// read is the reader's goroutine. After the link went down it throws away what still comes, until the connection is
// closed or its deadline has passed: see sayGoodbye.
func (l *link) read() {
	defer l.wg.Done()
	l.busy.Store(false)
	r := bufio.NewReaderSize(l.reader(), 32<<10)
	lim := l.limits()
	for {
		f, err := wire.ReadFrame(r, lim)
		if err == nil {
			err = l.receive(f)
		}
		if err == nil {
			continue
		}
		switch {
		case errors.Is(err, fault.ErrProtocolViolation):
			l.shut(err, true)
		case errors.Is(err, io.EOF):
			l.lost(nil, "the peer closed the connection")
		default:
			l.lost(err, "the connection failed")
		}
		_, _ = io.Copy(io.Discard, l.conn)
		return
	}
}

// errDown stops the reader of a link that is down.
var errDown = errors.New("the link is down")

// receive handles one frame.
func (l *link) receive(f wire.Frame) error {
	select {
	case <-l.down:
		return errDown
	default:
	}
	switch f.Kind {
	case wire.KindPing:
		if f.Request == 0 {
			return violation("request_id", "0 in %s, which is answered", f.Kind)
		}
		_ = l.answerPing(f.Request)
		return nil
	case wire.KindOK, wire.KindError:
		if f.Request&PingBit != 0 {
			return nil
		}
		if f.Request == 0 && f.Kind == wire.KindError {
			return l.endedByPeer(&f)
		}
	case wire.KindBind, wire.KindRelease, wire.KindGrant, wire.KindGrantRenew, wire.KindFind, wire.KindOpenBlock, wire.KindTraceOf, wire.KindProbeOpen, wire.KindProbeRun:
		if l.dialed {
			return violation("kind", "%s to the side that dialed", f.Kind)
		}
		if f.Request == 0 {
			return violation("request_id", "0 in %s, which is answered", f.Kind)
		}
	case wire.KindFin, wire.KindAbort, wire.KindGrantRevoke, wire.KindClaimed:
		if l.dialed {
			return violation("kind", "%s to the side that dialed", f.Kind)
		}
	case wire.KindDone, wire.KindEnded, wire.KindGrantLayers, wire.KindGrantEnded, wire.KindClaim:
		if !l.dialed {
			return violation("kind", "%s from the side that dialed", f.Kind)
		}
	case wire.KindPeerBye:
		l.bye.Store(true)
		if !l.announced() { // a flight: there is nothing that could go on
			l.shut(fault.New(fault.Draining, "peer link", "node %q is shutting down", l.ref.Node), false)
			return errDown
		}
	default:
		return violation("kind", "%s on a link between daemons", f.Kind)
	}
	if !l.announced() {
		return violation("kind", "%s before any request", f.Kind)
	}
	l.busy.Store(true)
	<-l.opened
	l.s.opt.Handler.LinkFrame(l, f)
	l.busy.Store(false)
	return nil
}

// endedByPeer takes the peer's reason for closing the connection.
func (l *link) endedByPeer(f *wire.Frame) error {
	var w fault.Wire
	if err := f.Decode(&w); err != nil {
		return err
	}
	l.lost(fault.FromWire(&w), "the peer ended the link")
	return errDown
}
