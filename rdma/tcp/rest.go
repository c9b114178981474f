package tcp

import (
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// rest is where lanes lie that have nothing to read: one epoll for a provider, which the runtime's poller watches, so
// that any number of quiet peers costs no thread. A socket is in it for one wake-up.
type rest struct {
	file *os.File // the epoll
	raw  syscall.RawConn
	done chan struct{}

	mu   sync.Mutex
	here map[int32]*socket
}

// open makes the epoll with its first socket. mu is held.
func (r *rest) open() error {
	if r.file != nil {
		return nil
	}
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	_ = unix.SetNonblock(fd, true) // so that package os gives it to the runtime's poller
	f := os.NewFile(uintptr(fd), "epoll")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return err
	}
	r.file, r.raw, r.done, r.here = f, raw, make(chan struct{}), map[int32]*socket{}
	go r.run()
	return nil
}

// close ends the goroutine. No socket is left.
func (r *rest) close() {
	r.mu.Lock()
	f := r.file
	r.mu.Unlock()
	if f != nil {
		_ = f.Close()
		<-r.done
	}
}

// put makes the next input of s, or its end, wake its reader.
func (r *rest) put(s *socket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.resting {
		return
	}
	if s.over.Load() || s.held.Load() || r.open() != nil {
		s.wake()
		return
	}
	s.resting = true
	r.here[int32(s.fd)] = s
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(s.fd)}
	err := r.raw.Control(func(fd uintptr) {
		if e := unix.EpollCtl(int(fd), unix.EPOLL_CTL_ADD, s.fd, &ev); e != nil {
			r.leave(s)
		}
	})
	if err != nil {
		r.leave(s)
	}
}

// take gets s out again; its reader is not woken by it.
func (r *rest) take(s *socket) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.resting {
		s.resting = false
		delete(r.here, int32(s.fd))
		_ = r.raw.Control(func(fd uintptr) { _ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, s.fd, nil) })
	}
}

// leave wakes the reader of a socket that could not be put here. mu is held.
func (r *rest) leave(s *socket) {
	s.resting = false
	delete(r.here, int32(s.fd))
	s.wake()
}

func (r *rest) run() {
	defer close(r.done)
	var evs [64]unix.EpollEvent
	for {
		n := 0
		err := r.raw.Read(func(fd uintptr) bool {
			n, _ = unix.EpollWait(int(fd), evs[:], 0)
			return n > 0
		})
		if err != nil {
			return
		}
		r.mu.Lock()
		for _, ev := range evs[:n] {
			s := r.here[ev.Fd]
			if s == nil {
				continue
			}
			_ = r.raw.Control(func(fd uintptr) { _ = unix.EpollCtl(int(fd), unix.EPOLL_CTL_DEL, s.fd, nil) })
			r.leave(s)
		}
		r.mu.Unlock()
	}
}
