package softnic

import (
	"unsafe"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// mr is a registration; it implements nic.MR. The pointer is kept beside the address: memory of the Go heap stays where it is, and
// every access is derived from what was registered.
type mr struct {
	d            *device
	base         unsafe.Pointer
	addr, length uint64
	access       nic.Access
	key          uint32
	bound        int // windows
	closed       bool
}

func (m *mr) LKey() uint32 { return m.key }
func (m *mr) RKey() uint32 { return m.key }

// has reports whether the whole range lies inside.
func (m *mr) has(addr, n uint64) bool {
	return addr >= m.addr && n <= m.length && addr-m.addr <= m.length-n
}

func (m *mr) at(addr uint64) unsafe.Pointer { return unsafe.Add(m.base, addr-m.addr) }

func (m *mr) Close() error {
	m.d.f.lock()
	defer m.d.f.unlock()
	if m.closed {
		return nil
	}
	if err := m.d.may("MR.Close", "ibv_dereg_mr"); err != nil {
		return err
	}
	if m.bound > 0 {
		return fault.New(fault.Internal, "ibv_dereg_mr", "%d windows are bound to it: EBUSY", m.bound)
	}
	m.drop()
	return nil
}

func (m *mr) drop() {
	m.d.a.flush()
	m.closed = true
	m.d.pinned -= m.length
	delete(m.d.a.mrs, m.key)
	m.d.a.free = append(m.d.a.free, m.key)
	m.base = nil
}

// window is a memory window; it implements nic.Window.
type window struct {
	d      *device
	key    uint32 // of the last Bind that was posted
	closed bool

	// What is bound now.
	live   uint32 // the key
	m      *mr
	q      *qp
	addr   uint64
	length uint64
	access nic.Access
}

func (w *window) RKey() uint32 {
	w.d.f.lock()
	defer w.d.f.unlock()
	return w.key
}

func (w *window) Close() error {
	w.d.f.lock()
	defer w.d.f.unlock()
	if w.closed || w.d.closed {
		return nil
	}
	if err := w.d.may("Window.Close", "ibv_dealloc_mw"); err != nil {
		return err
	}
	w.drop()
	return nil
}

func (w *window) drop() {
	w.closed = true
	w.unbind()
	delete(w.d.windows, w)
	w.d.a.allocated--
	w.d.a.free = append(w.d.a.free, w.key)
}

func (w *window) unbind() {
	if w.m != nil {
		w.d.a.flush()
		delete(w.d.a.windows, w.live)
		w.m.bound--
		w.m, w.q = nil, nil
	}
}

// newKey gives a key. Its upper part is a number that is used again as soon as real devices do: at once. Its lowest byte differs then.
func (a *Adapter) newKey() uint32 {
	if len(a.free) > 0 {
		k := a.free[0]
		a.free = a.free[1:]
		return k&^0xff | (k+1)&0xff
	}
	a.nextKey++
	return a.nextKey<<8 | a.f.rng.Uint32N(256)
}

func (a *Adapter) newQPN() uint32 {
	for {
		a.nextQPN = (a.nextQPN + 1) & psnMask
		if a.nextQPN > 1 && a.qps[a.nextQPN] == nil {
			return a.nextQPN
		}
	}
}

// reach gives the memory that a key opens for a peer of q, if the key is valid on q now, the range inside and the right there.
func (a *Adapter) reach(q *qp, key uint32, addr, n uint64, right nic.Access) *mr {
	if m := a.mrs[key]; m != nil {
		if m.d == q.d && m.access&right != 0 && m.has(addr, n) {
			return m
		}
		return nil
	}
	w := a.windows[key]
	if w == nil || w.q != q || w.access&right == 0 || addr < w.addr || n > w.length || addr-w.addr > w.length-n {
		return nil
	}
	return w.m
}

// own gives the memory of a local key.
func (a *Adapter) own(q *qp, key uint32, addr, n uint64, right nic.Access) *mr {
	m := a.mrs[key]
	if m == nil || m.d != q.d || m.access&right != right || !m.has(addr, n) {
		return nil
	}
	return m
}

// walk moves n bytes between data and the pieces of local memory, from offset bytes into them. It moves nothing and returns false
// when a key, range or right is wrong.
func (q *qp) walk(sges []nic.SGE, offset, n uint64, data *[maxMTU]byte, into bool) bool {
	var right nic.Access
	q.a.flush()
	if into {
		right = nic.LocalWrite
	}
	for pass := range 2 {
		skip, left, done := offset, n, uint64(0)
		for i := 0; left > 0; i++ {
			if i == len(sges) {
				return false
			}
			g := &sges[i]
			if skip >= uint64(g.Len) {
				skip -= uint64(g.Len)
				continue
			}
			k := min(left, uint64(g.Len)-skip)
			m := q.a.own(q, g.LKey, g.Addr+skip, k, right)
			if m == nil {
				return false
			}
			if pass == 1 {
				if into {
					move(m.at(g.Addr+skip), unsafe.Pointer(&data[done]), int(k))
				} else {
					move(unsafe.Pointer(&data[done]), m.at(g.Addr+skip), int(k))
				}
			}
			left -= k
			done += k
			skip = 0
		}
	}
	return true
}
