package tcp

import (
	"io"
	"syscall"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// receiver reads frames from a lane: control bytes into a small mapped buffer, payload straight into registered
// memory. Only the lane's reader goroutine uses it.
type receiver struct {
	raw syscall.RawConn
	try func(fd uintptr) bool
	// ctl holds control bytes not yet consumed, ctl[:have]. It is never filled beyond what is known to be control,
	// so payload cannot get into it.
	ctl  []byte
	have int
	want int // fill: until have reaches want...
	max  int // ...taking at most up to max

	secure *secureRx // nil: bytes come straight from the socket

	sink   []byte // where payload goes that nobody may place
	vec    []iovec
	first  int
	gate   entrance
	left   uint64 // payload bytes not read yet; 0: fill
	placed uint64
	status fault.Code // why payload goes to the sink
	err    error
}

const (
	// ahead is what may follow a payload and is certainly control: its trailer and the next header.
	ahead       = trailerLen + headerLen
	receiverCtl = maxCount*resultLen + headerLen
	// chunk bounds the bytes that one system call places, and so how long a fence waits.
	chunk = 256 << 10
)

func (r *receiver) init(raw syscall.RawConn, ctl, sink []byte) {
	*r = receiver{raw: raw, ctl: ctl[:receiverCtl:receiverCtl], sink: sink, vec: make([]iovec, 0, maxCount+1)}
	r.try = r.attempt
}

// fill reads control bytes until n are there. It may take up to more bytes beyond them: the caller knows that they
// are control too.
func (r *receiver) fill(n, more int) error {
	if r.have >= n {
		return nil
	}
	r.want, r.max, r.left = n, n+more, 0
	return r.run()
}

// drop consumes n control bytes.
func (r *receiver) drop(n int) { r.have = copy(r.ctl, r.ctl[n:r.have]) }

// begin starts a payload; its places are added with add.
func (r *receiver) begin() { r.vec, r.first, r.left, r.want = r.vec[:0], 0, 0, 0 }

func (r *receiver) add(base uintptr, n uint64) {
	r.vec = append(r.vec, iovec{base, n})
	r.left += n
}

// place reads the payload into its places as long as g lets it, the rest into the sink. It returns how many bytes
// are surely placed and why not all; MemoryFault may have placed more.
func (r *receiver) place(g entrance) (uint64, fault.Code, error) {
	r.gate, r.placed, r.status = g, 0, 0
	err := r.run()
	return r.placed, r.status, err
}

// discard reads n bytes of payload into the sink.
func (r *receiver) discard(n uint64) error {
	r.gate, r.placed, r.status, r.left, r.want = nil, 0, fault.Cancelled, n, 0
	return r.run()
}

func (r *receiver) run() error {
	if r.secure != nil {
		return r.runSecure()
	}
	r.err = nil
	if err := r.raw.Read(r.try); err != nil {
		return err
	}
	return r.err
}

// attempt runs inside RawConn.Read, which waits for bytes between two attempts: no gate is held then.
func (r *receiver) attempt(fd uintptr) bool {
	for r.left > 0 || r.have < r.want {
		var n uint64
		var e syscall.Errno
		gated := false
		switch {
		case r.left == 0:
			n, e = r.readControl(fd)
		case r.status != 0:
			n, e = r.readSink(fd)
		default:
			if st := r.gate.enter(); st != 0 {
				r.status = st
				continue
			}
			gated = true
			n, e = r.readPlaces(fd)
			r.gate.leave()
		}
		switch {
		case e == syscall.EAGAIN:
			return false
		case e == syscall.EINTR:
		case e == syscall.EFAULT && gated:
			r.status = fault.MemoryFault
		case e != 0:
			r.err = e
			return true
		case n == 0:
			r.err = io.EOF
			return true
		default:
			r.advance(n, gated)
		}
	}
	return true
}

func (r *receiver) readControl(fd uintptr) (uint64, syscall.Errno) {
	v := [1]iovec{iov(r.ctl[r.have:r.max])}
	return readv(fd, v[:])
}

func (r *receiver) readSink(fd uintptr) (uint64, syscall.Errno) {
	v := [2]iovec{iov(r.sink[:min(r.left, uint64(len(r.sink)))]), iov(r.ctl[:ahead])}
	if v[0].len < r.left {
		return readv(fd, v[:1])
	}
	return readv(fd, v[:])
}

// readPlaces reads one chunk. When it ends the payload, what surely follows is read along.
func (r *receiver) readPlaces(fd uintptr) (uint64, syscall.Errno) {
	last, room := r.first, uint64(chunk)
	for last < len(r.vec) && last-r.first < chunkVecs && r.vec[last].len <= room {
		room -= r.vec[last].len
		last++
	}
	switch {
	case last == len(r.vec):
		r.vec = append(r.vec, iov(r.ctl[:ahead]))
		n, e := readv(fd, r.vec[r.first:])
		r.vec = r.vec[:last]
		return n, e
	case last-r.first < chunkVecs && room > 0:
		whole := r.vec[last].len
		r.vec[last].len = room
		n, e := readv(fd, r.vec[r.first:last+1])
		r.vec[last].len = whole
		return n, e
	}
	return readv(fd, r.vec[r.first:last])
}

func (r *receiver) advance(n uint64, placed bool) {
	if r.left == 0 {
		r.have += int(n)
		return
	}
	k := min(n, r.left)
	r.left -= k
	if r.left == 0 {
		// ctl is empty while a payload is read, see lane readers: they drop its frame's control bytes first.
		r.have, r.want = int(n-k), 0
	}
	if !placed {
		return
	}
	r.placed += k
	for k > 0 {
		v := &r.vec[r.first]
		if v.len > k {
			v.base += uintptr(k)
			v.len -= k
			return
		}
		k -= v.len
		r.first++
	}
}
