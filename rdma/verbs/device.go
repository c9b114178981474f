package verbs

import (
	"crypto/rand"
	"encoding/binary"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// Sizes of a queue pair. Sixteen records are on their way at most a quarter of the send queue long.
const (
	sendDepth = 256
	recvDepth = 64
	wantSGE   = 4
	batch     = 32 // requests of one crossing at most
	slabLen   = recvDepth * recordLen
)

// restFor is how long a dead queue pair keeps its number, so that no packet of its time meets another one of that number.
const restFor = 5 * time.Second

// maxResting bounds them: the oldest goes when there are more.
const maxResting = 256

// owner is who gets a queue pair's completions, in runs.
type owner interface {
	completed(run []nic.Completion)
	deviceLost(err error)
}

// device is an opened device with its poller.
type device struct {
	p       *Provider
	index   int
	info    nic.DeviceInfo
	dev     nic.Device
	attr    nic.Attr
	windows bool // fences by memory windows
	depth   nic.QPConfig
	wg      sync.WaitGroup

	abandoning sync.Mutex // held over the close of a device that failed, which may take seconds; taken before mu

	mu      sync.RWMutex
	owners  map[uint32]owner
	resting []rested
	spares  []nic.QP
	slabs   []*slab
	pool    []nic.Window
	failed  error // the device is unusable; its memory is safe when gone is true
	gone    bool  // written under abandoning too
	closing bool
	ports   map[int]knownPort
}

// knownPort is what a port was when it was last asked: a table of a thousand GIDs takes a thousand system calls to read.
type knownPort struct {
	info nic.PortInfo
	at   time.Time
}

// portFor is for how long what is known of a port holds; an event ends it sooner.
const portFor = time.Second

// port is a port's state, MTU and GIDs. The GIDs are not to be changed.
func (d *device) port(n int) (nic.PortInfo, error) {
	d.mu.RLock()
	k, ok := d.ports[n]
	d.mu.RUnlock()
	if ok && time.Since(k.at) < portFor {
		return k.info, nil
	}
	info, err := d.dev.Port(n)
	if err != nil {
		return info, err
	}
	d.mu.Lock()
	d.ports[n] = knownPort{info, time.Now()}
	d.mu.Unlock()
	return info, nil
}

type rested struct {
	qp    nic.QP
	since time.Time
}

// slab is registered memory of the provider's own, for one lane's records.
type slab struct {
	mem []byte
	mr  nic.MR
}

func (s *slab) addr(slot int) uint64 {
	return uint64(uintptr(unsafe.Pointer(&s.mem[0]))) + uint64(slot*recordLen)
}

// receive is the entry of a receive into a slot.
func (s *slab) receive(slot int) nic.SGE {
	return nic.SGE{Addr: s.addr(slot), Len: recordLen, LKey: s.mr.LKey()}
}

func (s *slab) slot(k int) []byte { return s.mem[k*recordLen : (k+1)*recordLen] }

func (p *Provider) openDevice(info nic.DeviceInfo, index int) (*device, error) {
	dev, err := p.opt.Host.Open(info.Name)
	if err != nil {
		return nil, err
	}
	d := &device{p: p, index: index, info: info, dev: dev, attr: dev.Attr(), owners: map[uint32]owner{}, ports: map[int]knownPort{}}
	d.windows = d.attr.Windows2B && !p.opt.NoWindows
	d.depth = nic.QPConfig{MaxSend: min(sendDepth, d.attr.MaxQPWR), MaxRecv: min(recvDepth, d.attr.MaxQPWR), MaxSGE: min(wantSGE, d.attr.MaxSGE)}
	d.depth.MaxSignaled = d.depth.MaxSend
	d.wg.Add(2)
	go d.poll()
	go d.watch()
	return d, nil
}

// poll is the device's one poller. It has a thread of its own, on the device's NUMA node.
func (d *device) poll() {
	defer d.wg.Done()
	// Never unlocked: a thread with an affinity of its own ends with its goroutine.
	runtime.LockOSThread()
	d.p.bind(d.info.NUMA)
	buf := make([]nic.Completion, 64)
	for {
		n, err := d.dev.Next(buf, d.p.opt.Spin, time.Second)
		switch {
		case d.ending():
			return
		case err != nil:
			d.fail(err)
			return
		}
		for at := 0; at < n; {
			end := at + 1
			for end < n && buf[end].QPN == buf[at].QPN {
				end++
			}
			if o := d.owner(buf[at].QPN); o != nil {
				o.completed(buf[at:end])
			}
			at = end
		}
	}
}

// watch hears of ports and of the device's death.
func (d *device) watch() {
	defer d.wg.Done()
	for {
		e, err := d.dev.NextEvent()
		if err != nil {
			return
		}
		d.p.opt.Logger.Info("rdma event", "device", d.info.Name, "port", e.Port, "event", e.Text)
		switch e.Kind {
		case nic.PortDown, nic.PortUp, nic.PortChanged:
			d.mu.Lock()
			clear(d.ports)
			d.mu.Unlock()
			d.p.portChanged(d, e.Port, e.Kind)
		case nic.QPFatal:
			if o := d.owner(e.QPN); o != nil {
				o.completed([]nic.Completion{{QPN: e.QPN, Status: nic.Other, ID: noRequest}})
			}
		case nic.DeviceFatal:
			err := fault.New(fault.PeerLost, "device", "%s is gone: %s", d.info.Name, e.Text)
			d.fail(err)
			// Also where nobody uses it now: its removal may be waiting for that.
			if err := d.abandon(err); err != nil {
				d.p.opt.Logger.Warn("rdma device not closed", "device", d.info.Name, "error", err)
			}
		}
	}
}

// noRequest is the id of a completion that is about the whole queue pair.
const noRequest = ^uint64(0)

func (d *device) ending() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.closing
}

func (d *device) owner(qpn uint32) owner {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.owners[qpn]
}

// usable is nil, or why the device is not.
func (d *device) usable() error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.failed
}

// fail marks the device and tells everybody on it.
func (d *device) fail(err error) {
	d.mu.Lock()
	if d.failed != nil || d.closing {
		d.mu.Unlock()
		return
	}
	d.failed = err
	var all []owner
	for _, o := range d.owners {
		all = append(all, o)
	}
	d.mu.Unlock()
	d.p.opt.Logger.Error("rdma device lost", "device", d.info.Name, "error", err)
	for _, o := range all {
		o.deviceLost(err)
	}
}

// newQP makes a queue pair for o, or takes a spare one, and sees that there is a spare again.
func (d *device) newQP(o owner) (nic.QP, error) {
	d.mu.Lock()
	if d.failed != nil {
		defer d.mu.Unlock()
		return nil, d.failed
	}
	if d.closing {
		d.mu.Unlock()
		return nil, errClosed("queue pair")
	}
	var qp nic.QP
	if n := len(d.spares); n > 0 {
		qp = d.spares[n-1]
		d.spares = d.spares[:n-1]
	}
	d.mu.Unlock()
	if qp == nil {
		var err error
		if qp, err = d.dev.NewQP(d.depth); err != nil {
			return nil, err
		}
	}
	d.mu.Lock()
	err := d.failed
	if err == nil {
		d.owners[qp.Num()] = o
	}
	d.mu.Unlock()
	if err != nil { // meanwhile; fail did not know of o
		_ = qp.Destroy()
		return nil, err
	}
	d.wake()
	return qp, nil
}

// wake makes spares in the background, and ends queue pairs that have rested.
func (d *device) wake() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing || d.failed != nil {
		return
	}
	d.wg.Add(1)
	go d.tidy()
}

func (d *device) tidy() {
	defer d.wg.Done()
	for {
		d.mu.Lock()
		var old nic.QP
		if n := len(d.resting); n > 0 && (n > maxResting || time.Since(d.resting[0].since) > restFor) {
			old = d.resting[0].qp
			d.resting = d.resting[1:]
		}
		more := len(d.spares) < d.p.opt.LanesPerRail && !d.closing && d.failed == nil
		d.mu.Unlock()
		if old != nil {
			if err := old.Destroy(); err != nil {
				d.p.opt.Logger.Warn("queue pair not destroyed", "device", d.info.Name, "error", err)
			}
			continue
		}
		if !more {
			return
		}
		qp, err := d.dev.NewQP(d.depth)
		if err != nil {
			return // whoever needs one hears why
		}
		d.mu.Lock()
		if d.closing {
			d.mu.Unlock()
			_ = qp.Destroy()
			return
		}
		d.spares = append(d.spares, qp)
		d.mu.Unlock()
	}
}

// spawn runs f beside its caller; close waits for it. false: the device is closing.
func (d *device) spawn(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing {
		return false
	}
	d.wg.Go(f)
	return true
}

// retire is the fence of a queue pair: when it returns nil, no packet to it places a byte and the device reads no memory for it.
// reached says that peers' requests come in on it; the build that shows what happens without fences leaves those alone.
func (d *device) retire(qp nic.QP, reached bool) error {
	d.mu.Lock()
	delete(d.owners, qp.Num())
	d.mu.Unlock()
	if reached && !gate.Fences {
		return nil
	}
	err := qp.Reset()
	if err != nil {
		d.p.opt.Logger.Warn("queue pair not reset", "device", d.info.Name, "qpn", qp.Num(), "error", err)
		if err = qp.Destroy(); err != nil {
			return d.abandon(err)
		}
		return nil
	}
	d.mu.Lock()
	d.resting = append(d.resting, rested{qp, time.Now()})
	d.mu.Unlock()
	return nil
}

// abandon closes a device that does not obey: the last rung of the ladder. nil: the kernel has ended everything on it.
func (d *device) abandon(cause error) error {
	go d.fail(fault.Wrap(fault.Internal, "rdma device does not obey", cause)) // owners are told outside of their locks
	d.abandoning.Lock()
	defer d.abandoning.Unlock()
	if d.gone {
		return nil
	}
	if err := d.dev.Close(); err != nil {
		return fault.Wrap(fault.Internal, "close device "+d.info.Name, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.gone = true
	return nil
}

func (d *device) takeSlab() (*slab, error) {
	d.mu.Lock()
	if n := len(d.slabs); n > 0 {
		s := d.slabs[n-1]
		d.slabs = d.slabs[:n-1]
		d.mu.Unlock()
		return s, nil
	}
	d.mu.Unlock()
	mem, err := unix.Mmap(-1, 0, slabLen, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fault.Wrap(fault.ResourceExhausted, "map memory for records", err)
	}
	mr, err := d.dev.Register(unsafe.Pointer(&mem[0]), slabLen, nic.LocalWrite)
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	return &slab{mem, mr}, nil
}

func (d *device) giveSlab(s *slab) {
	if s == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.slabs = append(d.slabs, s)
}

// takeWindow gives an unbound memory window.
func (d *device) takeWindow() (nic.Window, error) {
	d.mu.Lock()
	if n := len(d.pool); n > 0 {
		w := d.pool[0] // the oldest: keys come back as late as can be
		d.pool = d.pool[1:]
		d.mu.Unlock()
		return w, nil
	}
	d.mu.Unlock()
	return d.dev.NewWindow()
}

func (d *device) giveWindow(w nic.Window) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pool = append(d.pool, w)
}

// close ends the device. Sessions are over.
func (d *device) close() error {
	d.mu.Lock()
	d.closing = true
	gone := d.gone
	d.mu.Unlock()
	for _, s := range d.slabs {
		_ = s.mr.Close()
	}
	if !gone {
		if err := d.dev.Close(); err != nil {
			return err // its goroutines and the records' memory stay with it: it may still use them
		}
	}
	d.wg.Wait()
	for _, s := range d.slabs {
		_ = unix.Munmap(s.mem)
	}
	return nil
}

// randomPSN draws where a queue pair's packets begin: a packet of an earlier connection falls into the window of the new one
// with a chance of one in a few million.
func randomPSN() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.LittleEndian.Uint32(b[:]) & 0xffffff
}
