package softnic

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Options of a fabric.
type Options struct {
	// Seed of everything that is drawn: faults of wires, first numbers of keys and queue pairs.
	Seed uint64
	// Unacked is how many packets of one queue pair may be under way; 0: 512.
	Unacked int
}

// Fabric is a network of simulated hosts. Its methods, and those of everything it makes, are safe for concurrent use.
type Fabric struct {
	opt Options

	// One lock for everything but completion queues. The engine holds it while it moves one packet, so whoever has had it since
	// knows that what he changed holds for each later packet: that is what makes a fence a fence here.
	mu      sync.Mutex
	waiting atomic.Int32 // callers who want mu; the engine steps aside for them
	rng     *rand.Rand
	hosts   map[string]*Host
	wires   map[[2]*Adapter]*Wire
	sched   schedule
	ready   []*qp // queue pairs that may have something to send
	turnAt  int   // the first of them whose turn it is
	now     int64 // the clock, in nanoseconds
	seen    time.Time
	routes  uint64
	open    int
	asleep  bool
	wake    chan struct{}
	done    chan struct{} // of the running engine
	bare    []*packet     // unused packets without room for payload
	full    []*packet     // and with it
}

// New makes a fabric without hosts.
func New(o Options) *Fabric {
	if o.Unacked == 0 {
		o.Unacked = 512
	}
	return &Fabric{opt: o, rng: rand.New(rand.NewPCG(o.Seed, 0x50f7)), hosts: map[string]*Host{},
		wires: map[[2]*Adapter]*Wire{}, wake: make(chan struct{}, 1), routes: 1}
}

// lock takes mu ahead of the engine, which would otherwise have it again before a waiting caller wakes up.
func (f *Fabric) lock() {
	f.waiting.Add(1)
	f.mu.Lock()
	f.waiting.Add(-1)
}

func (f *Fabric) unlock() { f.mu.Unlock() }

// rouse makes the engine look; the lock is held.
func (f *Fabric) rouse() {
	if f.asleep {
		f.asleep = false
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}
}

// opened counts a device that was opened and starts the engine with the first; the lock is held.
func (f *Fabric) opened() {
	f.open++
	if f.open == 1 {
		f.done = make(chan struct{})
		go f.engine(f.done)
	}
}

// closed counts a device that was closed and gives what must be waited for, without the lock, when it was the last.
func (f *Fabric) closed() chan struct{} {
	f.open--
	if f.open > 0 {
		return nil
	}
	f.rouse()
	return f.done
}

// slack is how far the clock goes at most while the engine does one thing.
const slack = int64(time.Millisecond)

// look moves the clock on as real time went, but no further than by what the engine waited for and a little more: while the
// process was not allowed to run, the devices stood still too, so a machine that is slow or busy makes no packet time out.
func (f *Fabric) look(waited time.Duration) {
	real := time.Now()
	f.now += min(int64(real.Sub(f.seen)), int64(waited)+slack)
	f.seen = real
}

// engine moves every packet and runs every timer of the fabric, in one goroutine, as long as a device is open.
func (f *Fabric) engine(done chan struct{}) {
	defer close(done)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	f.mu.Lock()
	f.seen = time.Now()
	for f.open > 0 && f.done == done {
		f.look(0)
		if f.step() {
			if f.waiting.Load() > 0 {
				f.mu.Unlock()
				for f.waiting.Load() > 0 {
					runtime.Gosched()
				}
				f.mu.Lock()
			}
			continue
		}
		wait := time.Hour
		if at, ok := f.sched.next(); ok {
			wait = time.Duration(at - f.now)
		}
		if wait <= 0 {
			continue
		}
		f.asleep = true
		f.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-f.wake:
		}
		f.mu.Lock()
		f.asleep = false
		f.look(wait)
	}
	f.mu.Unlock()
}

// step does at most one thing that is due and gives one queue pair its turn; it reports whether there was anything.
func (f *Fabric) step() bool {
	now := f.now
	e, did := f.sched.due(now)
	if did {
		switch {
		case e.p != nil:
			f.deliver(e.p, now)
		case e.q != nil:
			e.q.tick(e.at, now)
		default:
			e.a.flush()
		}
	}
	if f.turnAt == len(f.ready) {
		return did
	}
	q := f.ready[f.turnAt]
	f.turnAt++
	if f.turnAt == len(f.ready) || f.turnAt == 256 {
		f.ready, f.turnAt = append(f.ready[:0], f.ready[f.turnAt:]...), 0
	}
	q.queued = false
	answered := q.answer(now)
	if q.request(now) || answered {
		f.turn(q)
	}
	return true
}

// turn puts q behind the others that have something to send; the lock is held.
func (f *Fabric) turn(q *qp) {
	if !q.queued {
		q.queued = true
		f.ready = append(f.ready, q)
	}
}
