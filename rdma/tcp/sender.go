package tcp

import (
	"syscall"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// sender writes frames to a lane, one at a time, each as one gather list: control bytes, payload straight from
// registered memory, trailer. One goroutine at a time uses it; lanes hand that right around (see their busy flags).
type sender struct {
	sock   *socket
	ctl    []byte    // mapped: header, descriptors or results; the trailer is at its end
	filler []byte    // zeros, sent in place of payload that may not be read any more
	secure *secureTx // nil: bytes go straight to the socket

	vec   []iovec
	first int // next of vec to send

	gate    entrance
	control uint64 // bytes left of header and descriptors
	payload uint64 // bytes left of payload
	trailer uint64 // bytes left of trailer
	begun   bool
	stage
	status fault.Code // why the payload became filler or, when nothing was sent yet, why the frame was dropped
	err    error
}

const senderCtl = headerLen + maxCount*resultLen + trailerLen

// chunkVecs bounds one system call's list; the kernel takes 1024.
const chunkVecs = 512

func (s *sender) init(ctl, filler, scratch []byte) {
	*s = sender{ctl: ctl[:senderCtl:senderCtl], filler: filler, vec: make([]iovec, 0, maxCount+2)}
	s.scratch = scratch
}

// begin starts a frame whose header and n-64 more control bytes are in ctl. Payload is added with add.
func (s *sender) begin(n int, g entrance) {
	s.vec = append(s.vec[:0], iov(s.ctl[:n]))
	s.first, s.control, s.payload, s.trailer = 0, uint64(n), 0, 0
	s.gate, s.begun, s.status, s.err = g, false, 0, nil
	s.process = noProcess
}

func (s *sender) add(base uintptr, n uint64) {
	s.vec = append(s.vec, iovec{base, n})
	s.payload += n
}

// seal ends the frame with a trailer.
func (s *sender) seal() {
	b := s.ctl[senderCtl-trailerLen:]
	putTrailer(b, 0)
	s.vec = append(s.vec, iov(b))
	s.trailer = trailerLen
}

// flush sends what is left of the frame. With wait it returns when the frame is out or the lane is dead; without, it
// may return false with no error: the socket is full and somebody must flush again.
func (s *sender) flush(wait bool) (bool, error) {
	if s.secure != nil {
		return s.flushSecure(wait)
	}
	for !s.attempt(uintptr(s.sock.fd)) && wait {
		s.sock.awaitRoom() // no gate is held
	}
	return s.control+s.payload+s.trailer == 0, s.err
}

// attempt sends what the socket takes at once. false: the socket is full.
func (s *sender) attempt(fd uintptr) bool {
	for s.control+s.payload+s.trailer > 0 {
		if s.process != noProcess {
			switch e := s.sendProcess(fd); e {
			case 0, syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false
			default:
				s.err = e
				return true
			}
		}
		gated := s.payload > 0 && s.gate != nil
		if gated {
			if st := s.gate.enter(); st != 0 {
				s.fill(st)
				continue
			}
		}
		n, e := writev(fd, s.vec[s.first:min(len(s.vec), s.first+chunkVecs)])
		if gated {
			s.gate.leave()
		}
		switch {
		case e == syscall.EAGAIN:
			return false
		case e == syscall.EINTR:
		case e == syscall.EFAULT && gated:
			s.fill(fault.MemoryFault)
		case e != 0:
			s.err = e
			return true
		default:
			s.advance(n)
		}
	}
	return true
}

func (s *sender) advance(n uint64) {
	s.begun = s.begun || n > 0
	for _, part := range [...]*uint64{&s.control, &s.payload, &s.trailer} {
		k := min(n, *part)
		*part -= k
		n -= k
	}
	left := s.control + s.payload + s.trailer
	for i := len(s.vec) - 1; ; i-- { // the tail of the list that holds what is left
		if i < s.first || left == 0 {
			s.first = i + 1
			return
		}
		if l := s.vec[i].len; l >= left {
			s.vec[i].base += uintptr(l - left)
			s.vec[i].len = left
			s.first = i
			return
		}
		left -= s.vec[i].len
	}
}

// fill gives up the payload: what is left of it goes out as zeros, so that the stream stays in step, and the trailer
// says why. A frame that has not begun is dropped.
func (s *sender) fill(st fault.Code) {
	s.status, s.gate = st, nil
	if !s.begun {
		s.control, s.payload, s.trailer = 0, 0, 0
		return
	}
	t := s.ctl[senderCtl-trailerLen:]
	putTrailer(t, st)
	ctl := s.vec[s.first]
	s.vec, s.first = s.vec[:0], 0
	if s.control > 0 {
		s.vec = append(s.vec, ctl)
	}
	s.vec = append(s.vec, iov(s.filler[:s.payload]), iov(t))
}
