package tapwire

import (
	"container/heap"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxFrame is longer than any frame of a TAP device.
const maxFrame = 68 << 10

// Faults is what happens to RoCE frames, drawn for each from one seed. Probabilities are 0 to 1.
type Faults struct {
	Seed      uint64
	Delay     time.Duration // of every frame
	Jitter    time.Duration // added to it: 0 to this
	Loss      float64
	Duplicate float64
	Reorder   float64       // frames that are held back by Behind, so that later ones overtake them
	Behind    time.Duration // 0 means 5 ms
}

// Stats counts frames since Open; both directions.
type Stats struct {
	RoCE      uint64 // that came from a device
	Others    uint64 // ARP, neighbour discovery and the like
	Delivered uint64 // RoCE frames handed to a device, duplicates included
	Lost      uint64 // by Faults or Cut
	Held      uint64 // now
}

// Wire joins two TAP devices.
type Wire struct {
	ends [2]io.ReadWriteCloser

	mu      sync.Mutex
	rng     *rand.Rand
	faults  Faults
	cut     bool
	hold    func(Frame) bool // nil: nothing is held
	held    []queued
	late    schedule
	seq     uint64
	stats   Stats
	closed  bool
	err     error
	wakes   chan struct{} // one slot: late has a new first
	readers sync.WaitGroup
}

type queued struct {
	due  time.Time
	seq  uint64
	to   int
	data []byte
}

// Open takes over two TAP devices that exist, and joins them. The devices have a carrier while the wire is open.
func Open(a, b string) (*Wire, error) {
	first, err := tap(a)
	if err != nil {
		return nil, err
	}
	second, err := tap(b)
	if err != nil {
		return nil, errors.Join(err, first.Close())
	}
	return join(first, second), nil
}

func tap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("tap device %s: %w", name, err), unix.Close(fd))
	}
	// Only now, since a descriptor without a device cannot be polled.
	return os.NewFile(uintptr(fd), name), nil
}

func join(a, b io.ReadWriteCloser) *Wire {
	w := &Wire{ends: [2]io.ReadWriteCloser{a, b}, wakes: make(chan struct{}, 1)}
	w.rng = rand.New(rand.NewPCG(0, 0))
	w.readers.Add(3)
	go w.read(0)
	go w.read(1)
	go w.deliverLate()
	return w
}

// SetFaults replaces what happens to RoCE frames from now on. The zero Faults ends it; frames that are late stay late.
func (w *Wire) SetFaults(f Faults) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Behind == 0 {
		f.Behind = 5 * time.Millisecond
	}
	w.faults, w.rng = f, rand.New(rand.NewPCG(f.Seed, 0x77697265))
}

// Hold keeps the RoCE frames that match back until Release; nil matches all. A second Hold replaces the first one's match and
// keeps what it held. match is called for every RoCE frame, must not block and must not call the wire.
func (w *Wire) Hold(match func(Frame) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if match == nil {
		match = func(Frame) bool { return true }
	}
	w.hold = match
}

// Release ends Hold and delivers what was held, in the order in which it came.
func (w *Wire) Release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hold = nil
	for _, q := range w.held {
		w.deliver(q)
	}
	w.held = nil
}

// DropHeld forgets what is held and goes on holding; it returns how many frames it was.
func (w *Wire) DropHeld() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.held)
	w.held = nil
	w.stats.Lost += uint64(n)
	return n
}

// Cut loses every frame, of any protocol, until Mend. Frames that are held or late are not lost.
func (w *Wire) Cut() { w.setCut(true) }

// Mend ends Cut.
func (w *Wire) Mend() { w.setCut(false) }

func (w *Wire) setCut(cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = cut
}

// Stats returns the counts of now.
func (w *Wire) Stats() Stats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Held = uint64(len(w.held))
	return s
}

// Close ends the wire; frames that are held or late are lost. It returns what went wrong while it was open.
func (w *Wire) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil
	}
	w.closed = true
	close(w.wakes)
	w.mu.Unlock()
	err := errors.Join(w.ends[0].Close(), w.ends[1].Close())
	w.readers.Wait()
	return errors.Join(w.err, err)
}

func (w *Wire) read(from int) {
	defer w.readers.Done()
	buf := make([]byte, maxFrame)
	for {
		n, err := w.ends[from].Read(buf)
		w.mu.Lock()
		if err != nil && !w.closed {
			w.err = errors.Join(w.err, err)
		}
		if err != nil || w.closed {
			w.mu.Unlock()
			return
		}
		w.arrive(parse(from, buf[:n]), buf[:n])
		w.mu.Unlock()
	}
}

// arrive decides about a frame; data is the reader's own buffer. w.mu is held.
func (w *Wire) arrive(f Frame, data []byte) {
	if !f.RoCE {
		w.stats.Others++
		if !w.cut {
			w.write(1-f.From, data)
		}
		return
	}
	w.stats.RoCE++
	copies, late := w.fate()
	if w.cut || copies == 0 {
		w.stats.Lost++
		return
	}
	q := queued{to: 1 - f.From, data: data}
	held := w.hold != nil && w.hold(f)
	if held || late > 0 {
		q.data = append([]byte(nil), data...)
	}
	for range copies {
		switch {
		case held:
			w.held = append(w.held, q)
		case late > 0:
			w.seq++
			q.due, q.seq = time.Now().Add(late), w.seq
			heap.Push(&w.late, q)
			select {
			case w.wakes <- struct{}{}:
			default:
			}
		default:
			w.deliver(q)
		}
	}
}

// fate draws always as many numbers, so that one fault's probability does not change what another one hits.
func (w *Wire) fate() (copies int, late time.Duration) {
	f := w.faults
	loss, double, behind, jitter := w.rng.Float64(), w.rng.Float64(), w.rng.Float64(), w.rng.Float64()
	if loss < f.Loss {
		return 0, 0
	}
	copies, late = 1, f.Delay+time.Duration(jitter*float64(f.Jitter))
	if double < f.Duplicate {
		copies = 2
	}
	if behind < f.Reorder {
		late += f.Behind
	}
	return copies, late
}

func (w *Wire) deliver(q queued) {
	w.stats.Delivered++
	w.write(q.to, q.data)
}

// write hands a frame to a device. A device that is down, or has no room, loses it like any other wire would.
func (w *Wire) write(to int, data []byte) {
	_, err := w.ends[to].Write(data)
	if err != nil && !w.closed && !errors.Is(err, unix.EIO) && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EAGAIN) {
		w.err = errors.Join(w.err, err)
	}
}

func (w *Wire) deliverLate() {
	defer w.readers.Done()
	for {
		w.mu.Lock()
		for len(w.late) > 0 && !w.late[0].due.After(time.Now()) && !w.closed {
			w.deliver(heap.Pop(&w.late).(queued))
		}
		var next <-chan time.Time
		if len(w.late) > 0 {
			next = time.After(time.Until(w.late[0].due))
		}
		w.mu.Unlock()
		select {
		case _, open := <-w.wakes:
			if !open {
				return
			}
		case <-next:
		}
	}
}

// schedule is a heap of late frames, first the one that is due first.
type schedule []queued

func (s schedule) Len() int { return len(s) }
func (s schedule) Less(i, j int) bool {
	return s[i].due.Before(s[j].due) || (s[i].due.Equal(s[j].due) && s[i].seq < s[j].seq)
}
func (s schedule) Swap(i, j int) { s[i], s[j] = s[j], s[i] }
func (s *schedule) Push(x any)   { *s = append(*s, x.(queued)) }
func (s *schedule) Pop() any {
	old := *s
	last := old[len(old)-1]
	old[len(old)-1] = queued{}
	*s = old[:len(old)-1]
	return last
}
