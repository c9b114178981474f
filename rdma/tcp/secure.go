package tcp

import (
	"crypto/tls"
	"runtime"
	"runtime/debug"
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// A lane over TLS. The kernel cannot place what it cannot decrypt, so payload takes two copies more than in clear: through
// crypto/tls's own buffer and through the lane's, both of them bounded and used again. The rules of the gate stay what they are:
// waiting for the network happens outside of it, with the lane's buffer as the scratch, and inside is one copy of a bounded chunk.

const (
	// secureIn holds one TLS record, which is what one Read gives at most.
	secureIn = 16 << 10
	// secureOut is what one Write is given: a few records.
	secureOut = 64 << 10
)

// secureRx is the receiving side: bytes of in[lo:hi] are decrypted and not consumed.
type secureRx struct {
	conn   *tls.Conn
	in     []byte
	lo, hi int
}

func newSecureRx(c *tls.Conn) *secureRx { return &secureRx{conn: c, in: make([]byte, secureIn)} }

// runSecure is run over TLS: it reads until the control bytes or the payload that are wanted have come.
func (r *receiver) runSecure() error {
	x := r.secure
	for r.left > 0 || r.have < r.want {
		if x.lo == x.hi {
			n, err := x.conn.Read(x.in)
			if n == 0 && err != nil {
				return err
			}
			x.lo, x.hi = 0, n
			continue
		}
		b := x.in[x.lo:x.hi]
		var n int
		switch {
		case r.left == 0:
			n = copy(r.ctl[r.have:r.max], b)
			r.advance(uint64(n), false)
		case r.status != 0:
			n = int(min(r.left, uint64(len(b))))
			r.advance(uint64(n), false)
		default:
			// A fault in mid-copy has placed something that is not counted; what is left, that included, goes nowhere.
			n, r.status = r.copyIn(b)
			r.advance(uint64(n), true)
		}
		x.lo += n
	}
	return nil
}

// copyIn copies payload to its places inside the gate: all of b, or what the payload has left.
func (r *receiver) copyIn(b []byte) (int, fault.Code) {
	if st := r.gate.enter(); st != 0 {
		return 0, st
	}
	defer r.gate.leave()
	n := 0
	for i := r.first; i < len(r.vec) && n < len(b); i++ {
		n += int(min(r.vec[i].len, uint64(len(b)-n)))
	}
	return n, guarded(func() {
		for i := r.first; i < len(r.vec) && len(b) > 0; i++ {
			b = b[copy(memory(r.vec[i]), b):]
		}
	}, &n)
}

// secureTx is the sending side.
type secureTx struct {
	conn *tls.Conn
	out  []byte
}

func newSecureTx(c *tls.Conn) *secureTx { return &secureTx{conn: c, out: make([]byte, secureOut)} }

// flushSecure is flush over TLS, which cannot write a part of a record and come back: without wait it leaves everything to
// whoever flushes again.
func (s *sender) flushSecure(wait bool) (bool, error) {
	if !wait {
		return s.control+s.payload+s.trailer == 0, nil
	}
	x := s.secure
	for s.control+s.payload+s.trailer > 0 {
		n, st := s.copyOut(x.out)
		if st != 0 {
			s.fill(st)
			continue
		}
		s.advance(uint64(n))
		if _, err := x.conn.Write(x.out[:n]); err != nil {
			return false, err
		}
	}
	return true, nil
}

// copyOut copies what comes next of the frame, payload inside the gate.
func (s *sender) copyOut(b []byte) (n int, st fault.Code) {
	if s.payload > 0 && s.gate != nil {
		if st := s.gate.enter(); st != 0 {
			return 0, st
		}
		defer s.gate.leave()
	}
	st = guarded(func() {
		for i := s.first; i < len(s.vec) && n < len(b); i++ {
			n += copy(b[n:], memory(s.vec[i]))
		}
	}, &n)
	return n, st
}

// memory gives the bytes that an iovec names. They are mapped, never of the Go heap, which is why they are kept as numbers; the
// gate keeps them mapped while they are used.
func memory(v iovec) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&v.base)), v.len)
}

// guarded runs a copy from or to memory of a client, which may have lost a page: then it gives MemoryFault and sets *n to 0.
func guarded(f func(), n *int) (st fault.Code) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch e := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			*n, st = 0, fault.MemoryFault
		default:
			panic(e)
		}
	}()
	f()
	return 0
}
