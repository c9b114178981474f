package softnic

import (
	"time"
	"unsafe"
)

// move copies n bytes, as a device does by DMA: without a word to the race detector. Applications read memory that packets are
// landing in, and real devices do not ask either. The copy is a loop of its own because the built-in copy tells the detector what
// it touches from inside the runtime, where norace does not reach; the pointers of a registration are checked by hand before.
//
//go:norace
//go:nocheckptr
func move(dst, src unsafe.Pointer, n int) {
	i := 0
	for ; i+32 <= n; i += 32 {
		d, s := (*[4]uint64)(unsafe.Add(dst, i)), (*[4]uint64)(unsafe.Add(src, i))
		d[0], d[1], d[2], d[3] = s[0], s[1], s[2], s[3]
	}
	for ; i < n; i++ {
		*(*byte)(unsafe.Add(dst, i)) = *(*byte)(unsafe.Add(src, i))
	}
}

// store is a packet of a WRITE whose bytes are on the way from the device to memory.
type store struct {
	p    *packet
	m    *mr
	addr uint64
}

// put places a packet's bytes: now, or as Device.LazyWrites has it. It keeps the packet in the second case.
func (a *Adapter) put(p *packet, m *mr, addr uint64, now int64) {
	lazy := a.conf.LazyWrites
	if lazy <= 0 {
		move(m.at(addr), unsafe.Pointer(p.data), p.n)
		return
	}
	p.kept = true
	a.stores = append(a.stores, store{p, m, addr})
	if len(a.stores) == 1 {
		a.f.sched.push(entry{at: now + a.f.rng.Int64N(int64(lazy)) + int64(time.Microsecond), a: a})
	}
}

// flush places everything that is on the way. It comes before each thing that promises it: a RECEIVE's completion, a read of
// memory by the device, and the end of a queue pair's or key's life.
func (a *Adapter) flush() {
	for _, s := range a.stores {
		move(s.m.at(s.addr), unsafe.Pointer(s.p.data), s.p.n)
		a.f.recycle(s.p)
	}
	clear(a.stores)
	a.stores = a.stores[:0]
}
