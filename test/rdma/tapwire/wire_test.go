package tapwire

import (
	"encoding/binary"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/testseed"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device stands for a TAP device: what the wire reads comes from in, what it writes goes to out.
type device struct {
	in   chan []byte
	out  chan []byte
	once sync.Once
}

func (d *device) Read(p []byte) (int, error) {
	b, ok := <-d.in
	if !ok {
		return 0, io.EOF
	}
	return copy(p, b), nil
}

func (d *device) Write(p []byte) (int, error) {
	d.out <- append([]byte(nil), p...)
	return len(p), nil
}

func (d *device) Close() error {
	d.once.Do(func() { close(d.in) })
	return nil
}

func newDevice() *device {
	return &device{in: make(chan []byte, 10000), out: make(chan []byte, 20000)}
}

func newWire(t *testing.T) (*Wire, *device, *device) {
	a, b := newDevice(), newDevice()
	w := join(a, b)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w, a, b
}

// packet is a RoCE frame, IPv4 or IPv6, with a PSN to know it by.
func packet(psn uint32, v6 bool) []byte {
	ip := make([]byte, 20)
	ip[0], ip[9] = 0x45, 17
	kind := uint16(0x0800)
	if v6 {
		ip = make([]byte, 40)
		ip[0], ip[6], kind = 0x60, 17, 0x86dd
	}
	b := binary.BigEndian.AppendUint16(make([]byte, 12), kind)
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, 50000)
	b = binary.BigEndian.AppendUint16(b, roce)
	b = append(b, 0, 0, 0, 0)
	b = append(b, 0x0a, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, 0x17)
	return binary.BigEndian.AppendUint32(b, psn)
}

// take waits for n frames and returns their PSNs.
func take(t *testing.T, d *device, n int) []uint32 {
	t.Helper()
	var psns []uint32
	for range n {
		select {
		case b := <-d.out:
			psns = append(psns, parse(0, b).PSN)
		case <-time.After(time.Minute):
			require.FailNow(t, "frames are missing", "%d of %d came", len(psns), n)
		}
	}
	return psns
}

func count(from, n uint32) []uint32 {
	var psns []uint32
	for i := range n {
		psns = append(psns, from+i)
	}
	return psns
}

// settle waits until the wire has seen n RoCE frames.
func settle(t *testing.T, w *Wire, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return w.Stats().RoCE == n }, time.Minute, time.Millisecond)
}

func TestNothingIsTouched(t *testing.T) {
	w, a, b := newWire(t)
	for i := range uint32(1000) {
		a.in <- packet(i, i%2 == 0)
		b.in <- packet(5000+i, false)
	}
	assert.Equal(t, count(0, 1000), take(t, b, 1000))
	assert.Equal(t, count(5000, 1000), take(t, a, 1000))
	assert.Equal(t, Stats{RoCE: 2000, Delivered: 2000}, w.Stats())
}

func TestOthersPass(t *testing.T) {
	w, a, b := newWire(t)
	w.Hold(nil)
	w.SetFaults(Faults{Loss: 1})
	arp := append(make([]byte, 12), 0x08, 0x06, 1, 2, 3)
	a.in <- arp
	assert.Equal(t, arp, <-b.out)
	w.Cut()
	a.in <- arp
	require.Eventually(t, func() bool { return w.Stats().Others == 2 }, time.Minute, time.Millisecond)
	assert.Empty(t, b.out)
}

func TestHold(t *testing.T) {
	w, a, b := newWire(t)
	w.Hold(func(f Frame) bool { return f.PSN%2 == 0 })
	for i := range uint32(100) {
		a.in <- packet(i, false)
	}
	settle(t, w, 100)
	for _, psn := range take(t, b, 50) {
		assert.Equal(t, uint32(1), psn%2)
	}
	assert.Equal(t, uint64(50), w.Stats().Held)
	w.Release()
	for i, psn := range take(t, b, 50) {
		assert.Equal(t, uint32(2*i), psn)
	}
	w.Hold(nil)
	a.in <- packet(1, true)
	settle(t, w, 101)
	assert.Equal(t, 1, w.DropHeld())
	a.in <- packet(2, true)
	settle(t, w, 102)
	w.Release()
	assert.Equal(t, []uint32{2}, take(t, b, 1))
}

func TestCutAndMend(t *testing.T) {
	w, a, b := newWire(t)
	w.Cut()
	a.in <- packet(1, false)
	settle(t, w, 1)
	w.Mend()
	a.in <- packet(2, false)
	assert.Equal(t, []uint32{2}, take(t, b, 1))
	assert.Equal(t, uint64(1), w.Stats().Lost)
}

func TestDelayKeepsTheOrderAndJitterAllComes(t *testing.T) {
	w, a, b := newWire(t)
	w.SetFaults(Faults{Delay: 20 * time.Millisecond})
	began := time.Now()
	for i := range uint32(200) {
		a.in <- packet(i, false)
	}
	got := take(t, b, 200)
	assert.GreaterOrEqual(t, time.Since(began), 20*time.Millisecond)
	assert.Equal(t, count(0, 200), got)
	w.SetFaults(Faults{Seed: testseed.Seed(t), Jitter: 5 * time.Millisecond, Reorder: 0.3})
	for i := range uint32(200) {
		a.in <- packet(i, false)
	}
	assert.ElementsMatch(t, count(0, 200), take(t, b, 200))
}

func TestSeedRepeats(t *testing.T) {
	seed := testseed.Seed(t)
	var first []uint32
	for range 2 {
		w, a, b := newWire(t)
		w.SetFaults(Faults{Seed: seed, Loss: 0.3, Duplicate: 0.3})
		for i := range uint32(1000) {
			a.in <- packet(i, false)
		}
		settle(t, w, 1000)
		s := w.Stats()
		got := take(t, b, int(s.Delivered))
		assert.NotZero(t, s.Lost)
		assert.Greater(t, s.Delivered, 1000-s.Lost, "some come twice")
		if first == nil {
			first = got
		}
		assert.Equal(t, first, got)
	}
}

func TestCloseLosesWhatIsHeldAndLate(t *testing.T) {
	w, a, b := newWire(t)
	w.SetFaults(Faults{Delay: time.Hour})
	a.in <- packet(1, false)
	settle(t, w, 1)
	w.Hold(nil)
	a.in <- packet(2, false)
	settle(t, w, 2)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	assert.Empty(t, b.out)
}

func FuzzParse(f *testing.F) {
	f.Add(packet(7, false))
	f.Add(packet(7, true))
	f.Add([]byte{})
	f.Add(packet(7, false)[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		got := parse(1, b)
		assert.Equal(t, len(b), got.Bytes)
		if !got.RoCE {
			assert.Equal(t, Frame{From: 1, Bytes: len(b)}, got)
		}
		assert.LessOrEqual(t, got.PSN, uint32(1<<24-1))
	})
}

// TestBetweenTAPDevices sends a frame over two real devices; in a virtual machine of test/rdma they are there.
func TestBetweenTAPDevices(t *testing.T) {
	r := Get(t)
	w := r.Wire(t)
	require.NotEmpty(t, r.Devices)
	assert.True(t, r.Wired())
	// The kernel greets a device that comes up: neighbour discovery, multicast reports.
	require.Eventually(t, func() bool { return w.Stats().Others > 0 }, time.Minute, time.Millisecond)
}
