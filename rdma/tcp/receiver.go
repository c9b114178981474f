package tcp

import (
	"io"
	"syscall"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// receiver reads frames from a lane: control bytes into a small mapped buffer, payload straight into registered
// memory. One goroutine at a time uses it. What is wanted next is said first (ask, begin and add and aim, drain), then run is
// called until it says that all of it has come.
type receiver struct {
	sock *socket
	// ctl holds control bytes not yet consumed, ctl[:have]. It is never filled beyond what is known to be control,
	// so payload cannot get into it.
	ctl  []byte
	have int
	want int // ask: until have reaches want...
	max  int // ...taking at most up to max
	// ahead is how many bytes behind a payload are certainly control.
	ahead int

	secure *secureRx // nil: bytes come straight from the socket

	sink []byte // where payload goes that nobody may place
	// scratch is where payload for memory of another process stands until it is placed; process is the descriptor, or
	// noProcess. See process.go.
	scratch []byte
	process int
	vec     []iovec
	first   int
	gate    entrance
	left    uint64 // payload bytes not read yet; 0: fill
	placed  uint64
	status  fault.Code // why payload goes to the sink
	err     error
}

const (
	// ahead is what may follow a payload and is certainly control: its trailer and the next header. Behind a header from an
	// initiator there are at least as many more bytes of control as a descriptor has, whatever its frame is.
	ahead       = trailerLen + headerLen
	aheadTarget = ahead + descLen
	receiverCtl = maxCount*resultLen + headerLen
	// chunk bounds the bytes that one system call places, and so how long a fence waits.
	chunk = 256 << 10
)

func (r *receiver) init(ctl, sink, scratch []byte) {
	*r = receiver{ctl: ctl[:receiverCtl:receiverCtl], sink: sink, scratch: scratch, ahead: ahead, vec: make([]iovec, 0, maxCount+1)}
}

// ask wants control bytes until n are there. Up to more bytes beyond them may be taken: the caller knows that they are
// control too.
func (r *receiver) ask(n, more int) { r.want, r.max, r.left = n, n+more, 0 }

// drop consumes n control bytes.
func (r *receiver) drop(n int) { r.have = copy(r.ctl, r.ctl[n:r.have]) }

// begin starts a payload for a region; its places are added with add.
func (r *receiver) begin(to *region) {
	r.vec, r.first, r.left, r.want, r.process = r.vec[:0], 0, 0, 0, to.process
}

func (r *receiver) add(base uintptr, n uint64) {
	r.vec = append(r.vec, iovec{base, n})
	r.left += n
}

// aim wants the payload in its places as long as g lets it, the rest in the sink. placed then says how many bytes are surely
// placed and status why not all; MemoryFault may have placed more.
func (r *receiver) aim(g entrance) { r.gate, r.placed, r.status = g, 0, 0 }

// drain wants n bytes of payload in the sink.
func (r *receiver) drain(n uint64) {
	r.gate, r.placed, r.status, r.left, r.want = nil, 0, fault.Cancelled, n, 0
}

// run reads what is there and says whether that is all that is wanted. Over TLS it waits until it is.
func (r *receiver) run() (bool, error) {
	if r.secure != nil {
		return true, r.runSecure()
	}
	r.err = nil
	return r.attempt(uintptr(r.sock.fd)), r.err
}

// holds is what await is given: see socket.
func (r *receiver) holds() uint32 {
	if r.sock == nil {
		return 0
	}
	return r.sock.holds.Load()
}

// await waits until run is worth another call; between says that the next frame is wanted, need how much of a payload is missing.
// Nobody is inside a gate.
func (r *receiver) await(between bool, need uint64, holds uint32) {
	r.sock.awaitInput(between, need, holds)
}

// attempt reads what is there. false: it is not all that is wanted.
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
		case r.process != noProcess:
			n, e = r.receiveProcess(fd)
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
	v := [2]iovec{iov(r.sink[:min(r.left, uint64(len(r.sink)))]), iov(r.ctl[:r.ahead])}
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
		r.vec = append(r.vec, iov(r.ctl[:r.ahead]))
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
