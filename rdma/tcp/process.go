package tcp

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Memory of another process (rdma.MemoryProcess) cannot stand in a gather list: it is reached by pread and pwrite on a
// descriptor of its /proc/PID/mem, through a scratch buffer of the lane. The socket is read into the scratch, and the
// scratch is sent, outside the gate, so nobody holds a gate while he waits for the network; inside it is one pread or
// pwrite at a time, so a fence waits for one of those, and deadline and fence are looked at for every range.
//
// Bytes that are in the scratch when the gate shuts are thrown away where they were to be placed; where they were to be
// sent they may still go, as bytes in a socket's buffer do: they were read while that was permitted.
//
// The descriptor is bound to an address space and not to a process number. When that address space ends (exit, kill or
// exec) every call gives 0 bytes, which is MemoryFault here; a process that gets the number later is never touched.
//
// Such a call can wait for what the client has put under its own addresses (a page on a slow disk, a handler of
// userfaultfd) and then holds its gate and its lane. That is part of the weaker guarantee: see internal/hostmem.

// processScratch is what one turn moves at most, and so bounds a call inside the gate as chunk does for mapped memory.
const processScratch = chunk

// noProcess in place of a descriptor: the memory is mapped here.
const noProcess = -1

// preadMem and pwriteMem move between the scratch and one range of the process's memory. The scratch lies outside the Go
// heap, so its address is a number here as in an iovec. The offset is an address below 2^62.
func preadMem(fd int, scratch uintptr, n uint64, at uintptr) (uint64, syscall.Errno) {
	k, _, e := unix.Syscall6(unix.SYS_PREAD64, uintptr(fd), scratch, uintptr(n), at, 0, 0)
	return moved(k, e)
}

func pwriteMem(fd int, scratch uintptr, n uint64, at uintptr) (uint64, syscall.Errno) {
	k, _, e := unix.Syscall6(unix.SYS_PWRITE64, uintptr(fd), scratch, uintptr(n), at, 0, 0)
	return moved(k, e)
}

func moved(n uintptr, e syscall.Errno) (uint64, syscall.Errno) {
	if e != 0 {
		return 0, e
	}
	return uint64(n), 0
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// receiveProcess reads one chunk of payload from the socket into the scratch and places it. It is the receiver's attempt
// for process memory; n and e are the socket's.
func (r *receiver) receiveProcess(fd uintptr) (n uint64, e syscall.Errno) {
	v := [2]iovec{iov(r.scratch[:min(r.left, uint64(len(r.scratch)))]), iov(r.ctl[:r.ahead])}
	if v[0].len < r.left {
		n, e = readv(fd, v[:1])
	} else {
		n, e = readv(fd, v[:])
	}
	if e != 0 || n == 0 {
		return n, e
	}
	r.placeProcess(min(n, v[0].len))
	return n, 0
}

// placeProcess writes scratch[:n] to the next places, each range under the gate, until the gate or the memory refuses.
func (r *receiver) placeProcess(n uint64) {
	from := address(r.scratch)
	for n > 0 {
		v := &r.vec[r.first]
		want := min(v.len, n)
		if st := r.gate.enter(); st != 0 {
			r.status = st
			return
		}
		k, e := pwriteMem(r.process, from, want, v.base)
		r.gate.leave()
		if e == syscall.EINTR {
			continue
		}
		if e != 0 || k == 0 {
			r.status = fault.MemoryFault
			return
		}
		from += uintptr(k)
		n -= k
		r.placed += k
		v.base += uintptr(k)
		if v.len -= k; v.len == 0 {
			r.first++
		}
	}
}

// stage is the sender's copy of process memory that is on its way out.
type stage struct {
	process int    // descriptor, or noProcess
	scratch []byte // mapped
	head    int    // control bytes of the frame, all of them
	off, n  uint64 // scratch[off:off+n] is to be sent
}

// from says which region the payload of the frame just begun lies in; places are added afterwards.
func (s *sender) from(r *region) {
	if s.process = r.process; s.process != noProcess {
		s.head, s.first, s.off, s.n = int(s.control), len(s.vec), 0, 0
	}
}

// stageNext copies the next piece of payload into the scratch, each range under the gate. On a refusal what was copied
// before it stays to be sent; the next turn meets the refusal again.
func (s *sender) stageNext() {
	s.off = 0
	room := min(uint64(len(s.scratch)), s.payload)
	for s.n < room {
		v := &s.vec[s.first]
		want := min(v.len, room-s.n)
		st := s.gate.enter()
		var k uint64
		var e syscall.Errno
		if st == 0 {
			k, e = preadMem(s.process, address(s.scratch)+uintptr(s.n), want, v.base)
			s.gate.leave()
			if e == syscall.EINTR {
				continue
			}
			if e != 0 || k == 0 {
				st = fault.MemoryFault
			}
		}
		if st != 0 {
			if s.n == 0 {
				s.fillProcess(st)
			}
			return
		}
		s.n += k
		v.base += uintptr(k)
		if v.len -= k; v.len == 0 {
			s.first++
		}
	}
}

// fillProcess gives up the payload as fill does.
func (s *sender) fillProcess(st fault.Code) {
	s.process = noProcess
	s.vec, s.first = append(s.vec[:0], iov(s.ctl[s.head-int(s.control):s.head])), 0
	s.fill(st)
}

// sendProcess is one turn of the sender's attempt for process memory: control bytes, what is staged and, behind the last
// of it, the trailer, in one call. It returns the socket's error.
func (s *sender) sendProcess(fd uintptr) syscall.Errno {
	if s.payload > 0 && s.n == 0 {
		if s.stageNext(); s.process == noProcess {
			return 0 // given up: the rest is filler
		}
	}
	v := [3]iovec{iov(s.ctl[s.head-int(s.control) : s.head]), iov(s.scratch[s.off : s.off+s.n])}
	last := 2
	if s.payload == s.n {
		v[last] = iov(s.ctl[senderCtl-int(s.trailer) : senderCtl])
		last++
	}
	n, e := writev(fd, v[:last])
	if e != 0 {
		return e
	}
	s.begun = s.begun || n > 0
	k := min(n, s.control)
	s.control -= k
	n -= k
	k = min(n, s.n)
	s.off += k
	s.n -= k
	s.payload -= k
	s.trailer -= n - k
	return 0
}
