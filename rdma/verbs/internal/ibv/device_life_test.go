//go:build cgo && linux

package ibv

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

func TestDeviceWake(t *testing.T) {
	d := open(t, names(t)[0])
	buf := make([]nic.Completion, 4)
	d.Wake()
	d.Wake()
	n, err := d.Next(buf, time.Hour, time.Hour)
	require.NoError(t, err)
	assert.Zero(t, n, "a Wake before Next")
	for _, spin := range []time.Duration{0, time.Hour} {
		done := make(chan error, 1)
		go func() {
			_, err := d.Next(buf, spin, time.Hour)
			done <- err
		}()
		for ended := false; !ended; {
			d.Wake()
			select {
			case err := <-done:
				require.NoError(t, err)
				ended = true
			case <-time.After(time.Millisecond):
			}
		}
	}
	_, _ = d.Next(buf, 0, 0) // takes a Wake that came too late
	start := time.Now()
	n, err = d.Next(buf, time.Millisecond, 30*time.Millisecond)
	require.NoError(t, err)
	assert.Zero(t, n)
	assert.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond, "it slept")
}

// TestDeviceSleepEndsWithCompletion: one that comes while Next sleeps ends the sleep.
func TestDeviceSleepEndsWithCompletion(t *testing.T) {
	d := open(t, names(t)[0])
	m := register(t, d, 4096, remote)
	p := pairOf(t, d, d, usual)
	for id := range uint64(20) {
		got := make(chan []nic.Completion, 1)
		go func() {
			buf := make([]nic.Completion, 4)
			n := 0
			for end := time.Now().Add(patience); n == 0 && time.Now().Before(end); {
				n, _ = d.Next(buf, 0, patience)
			}
			got <- buf[:n]
		}()
		time.Sleep(time.Duration(id%4) * time.Millisecond) // before it sleeps, or while it does
		post(t, p.a, m.first(8), m.write(id, true))
		start := time.Now()
		assert.Equal(t, []nic.Completion{{ID: id, QPN: p.a.Num()}}, <-got)
		assert.Less(t, time.Since(start), patience)
	}
}

func TestDeviceCloseEndsWaits(t *testing.T) {
	d := open(t, names(t)[0])
	ends := make(chan error, 2)
	go func() {
		for {
			if _, err := d.NextEvent(); err != nil {
				ends <- err
				return
			}
		}
	}()
	go func() {
		buf := make([]nic.Completion, 4)
		for {
			if _, err := d.Next(buf, 0, time.Hour); err != nil {
				ends <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond) // they sleep now, as a rule; both orders must end
	require.NoError(t, d.Close())
	for range 2 {
		assert.ErrorIs(t, <-ends, fault.ErrClosed)
	}
}

// TestDeviceCloseDestroysWhatIsLeft also calls everything afterwards.
func TestDeviceCloseDestroysWhatIsLeft(t *testing.T) {
	d := open(t, names(t)[0])
	b := memory(t, 8192)
	mr, err := d.Register(unsafe.Pointer(unsafe.SliceData(b)), 8192, remote|nic.WindowBind)
	require.NoError(t, err)
	p := &pair{}
	p.a, err = d.NewQP(usual)
	require.NoError(t, err)
	p.b, err = d.NewQP(usual)
	require.NoError(t, err)
	connect(t, d, d, p)
	var w nic.Window
	if d.Attr().Windows2B {
		w, err = d.NewWindow()
		require.NoError(t, err)
		_, err = p.b.Bind(1, w, mr, address(b), 4096, nic.RemoteWrite)
		require.NoError(t, err)
		require.Equal(t, nic.Success, next(t, d, 1)[0].Status)
	}
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())

	d.Wake()
	sges := []nic.SGE{{Addr: address(b), Len: 8, LKey: mr.LKey()}}
	_, port := d.Port(1)
	_, reg := d.Register(unsafe.Pointer(unsafe.SliceData(b)), 8192, remote)
	_, win := d.NewWindow()
	_, qp := d.NewQP(usual)
	_, nxt := d.Next(make([]nic.Completion, 1), time.Second, time.Second)
	_, evt := d.NextEvent()
	_, snd := p.a.Post([]nic.WR{{Op: nic.Write, Count: 1}}, sges)
	_, rcv := p.a.PostRecv([]uint64{1}, sges)
	for i, err := range []error{port, reg, win, qp, nxt, evt, snd, rcv, p.a.Fail(), p.a.Reset(), p.a.Invalidate(1, 1), p.a.Connect(nic.Path{}, nic.Connection{})} {
		assert.ErrorIs(t, err, fault.ErrClosed, i)
	}
	if w != nil {
		_, err = p.b.Bind(1, w, mr, address(b), 4096, nic.RemoteWrite)
		assert.ErrorIs(t, err, fault.ErrClosed)
		assert.NoError(t, w.Close())
	}
	assert.NoError(t, mr.Close(), "it was deregistered")
	assert.NoError(t, p.a.Destroy(), "it was destroyed")
}

func TestDeviceRefusesSizes(t *testing.T) {
	d := open(t, names(t)[0])
	for field, c := range map[string]nic.QPConfig{"MaxSend": {MaxSGE: 1}, "MaxRecv": {MaxSend: 1, MaxSGE: 1, MaxRecv: -1}, "MaxSGE": {MaxSend: 1, MaxSGE: 1 << 20}, "MaxSignaled": {MaxSend: 1, MaxSGE: 1, MaxSignaled: 2}} {
		_, err := d.NewQP(c)
		require.ErrorIs(t, err, fault.ErrInvalidArgument)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	q, err := d.NewQP(usual)
	require.NoError(t, err)
	good := nic.Connection{Timeout: 14, Retries: 6, RNRRetries: 6}
	at := path(t, d, d)
	for field, change := range map[string]func(*nic.Path, *nic.Connection){
		"MTU": func(p *nic.Path, _ *nic.Connection) { p.MTU = 1500 }, "Port": func(p *nic.Path, _ *nic.Connection) { p.Port = 0 },
		"Retries": func(_ *nic.Path, c *nic.Connection) { c.Retries = 7 }, "RNRRetries": func(_ *nic.Path, c *nic.Connection) { c.RNRRetries = 7 },
		"PSN": func(_ *nic.Path, c *nic.Connection) { c.PSN = 1 << 24 }, "Timeout": func(_ *nic.Path, c *nic.Connection) { c.Timeout = 0 },
		"ReadInit": func(_ *nic.Path, c *nic.Connection) { c.ReadInit = 1000 },
	} {
		p, c := at, good
		change(&p, &c)
		err := q.Connect(p, c)
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	bad := at
	bad.GIDIndex = 200 // no entry, or none of this table
	bad.Global = true
	err = q.Connect(bad, good)
	require.Error(t, err)
	assert.ErrorContains(t, err, "GID 200")
	assert.NoError(t, q.Connect(at, good), "after a path that did not work")
	assert.NoError(t, q.Destroy())
	_, err = d.Register(nil, 0, remote)
	assert.ErrorIs(t, err, fault.ErrInvalidArgument)
}

func run(t *testing.T, name string, args ...string) {
	out, err := exec.Command(name, args...).CombinedOutput()
	require.NoError(t, err, "%s %s: %s", name, strings.Join(args, " "), out)
}

// softDevice makes a SoftRoCE device of the test's own, over an interface of its own.
func softDevice(t *testing.T) (device, link string) {
	first := names(t)[0]
	if !soft(first) {
		t.Skipf("%s is hardware: this test makes and removes a SoftRoCE device, which is left to machines that are made for it", first)
	}
	for _, tool := range []string{"rdma", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs the tool %q", tool)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root to make a SoftRoCE device")
	}
	device, link = fmt.Sprintf("kvrxe%d", os.Getpid()%1000), fmt.Sprintf("kvdum%d", os.Getpid()%1000)
	run(t, "ip", "link", "add", link, "type", "dummy")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", link).Run() })
	run(t, "ip", "addr", "add", "10.77.0.1/24", "dev", link)
	run(t, "ip", "link", "set", link, "mtu", "1500", "up")
	run(t, "rdma", "link", "add", device, "type", "rxe", "netdev", link)
	return device, link
}

// TestDevicePortEvents: a link that goes down and comes up is told.
func TestDevicePortEvents(t *testing.T) {
	name, link := softDevice(t)
	d := open(t, name)
	events := make(chan nic.Event, 64)
	go func() {
		defer close(events)
		for {
			e, err := d.NextEvent()
			if err != nil {
				return
			}
			events <- e
		}
	}()
	await := func(kind nic.EventKind) {
		for end := time.After(patience); ; {
			select {
			case e := <-events:
				if e.Kind == kind {
					assert.Equal(t, 1, e.Port)
					return
				}
			case <-end:
				require.Fail(t, "no event", "%d", kind)
			}
		}
	}
	run(t, "ip", "link", "set", link, "down")
	await(nic.PortDown)
	p, err := d.Port(1)
	require.NoError(t, err)
	assert.False(t, p.Active)
	run(t, "ip", "link", "set", link, "up")
	await(nic.PortUp)
	require.NoError(t, d.Close())
	for range events {
	}
}

// TestDeviceRemoved removes a device that is in use. Either the kernel ends its users' accesses and says so, or, as for SoftRoCE,
// it waits for them: then NextEvent finds out that the device goes, and the removal ends when it is closed.
func TestDeviceRemoved(t *testing.T) {
	name, _ := softDevice(t)
	d := open(t, name)
	m := memory(t, 4096)
	mr, err := d.Register(unsafe.Pointer(unsafe.SliceData(m)), 4096, remote)
	require.NoError(t, err)
	p := &pair{}
	p.a, err = d.NewQP(usual)
	require.NoError(t, err)
	p.b, err = d.NewQP(usual)
	require.NoError(t, err)
	connect(t, d, d, p)
	events := make(chan nic.EventKind, 64)
	go func() {
		for {
			e, err := d.NextEvent()
			if err != nil {
				close(events)
				return
			}
			events <- e.Kind
		}
	}()
	removal := exec.Command("rdma", "link", "delete", name)
	require.NoError(t, removal.Start())
	ended := make(chan error, 1)
	go func() { ended <- removal.Wait() }()

	fatal := false
	select {
	case err := <-ended:
		t.Logf("the removal ended with the device in use: %v", err)
		for k := range events {
			if fatal = k == nic.DeviceFatal; fatal {
				break
			}
		}
	case k := <-events:
		t.Logf("event %d", k)
		fatal = k == nic.DeviceFatal
	case <-time.After(time.Second):
		t.Log("the removal waits for the device's users")
	}
	n, err := p.a.Post([]nic.WR{{ID: 1, Op: nic.Write, Remote: address(m), RKey: mr.RKey(), Count: 1, Signaled: true}}, []nic.SGE{{Addr: address(m) + 64, Len: 8, LKey: mr.LKey()}})
	t.Logf("post: %d, %v", n, err)
	k, err2 := d.Next(make([]nic.Completion, 1), 0, 100*time.Millisecond)
	t.Logf("next: %d, %v", k, err2)
	_, err3 := d.NewQP(usual)
	t.Logf("queue pair: %v", err3)
	_, err4 := d.Port(1)
	t.Logf("port: %v", err4)
	if fatal {
		for _, err := range []error{err, err2, err3, err4} {
			assert.ErrorIs(t, err, fault.ErrPeerLost)
		}
	} else {
		for _, err := range []error{err, err2, err3, err4} {
			if err != nil {
				assert.ErrorIs(t, err, fault.ErrPeerLost)
			}
		}
	}
	require.NoError(t, d.Close(), "the memory is known to be untouched from now on")
	select {
	case err := <-ended:
		assert.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "the device was closed and is not removed")
	}
	all, err := New().Devices()
	require.NoError(t, err)
	for _, left := range all {
		assert.NotEqual(t, name, left.Name)
	}
	_, err = New().Open(name)
	assert.ErrorIs(t, err, fault.ErrNotSupported)
}

// TestDeviceMemlock runs itself as a user without CAP_IPC_LOCK.
func TestDeviceMemlock(t *testing.T) {
	const child = "KVXFER_TEST_MEMLOCK" // names the device
	name := os.Getenv(child)
	if name == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestDeviceMemlock$", "-test.v")
		cmd.Env = append(os.Environ(), child+"="+names(t)[0])
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
			cmd.Dir = "/"
		}
		out, err := cmd.CombinedOutput()
		if strings.Contains(string(out), "PermissionDenied") {
			t.Skipf("others than root may not open the device: %s", out)
		}
		require.NoError(t, err, string(out))
		assert.Contains(t, string(out), "--- PASS")
		return
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}))
	dev, err := New().Open(name)
	require.NoError(t, err)
	b := memory(t, 4<<20)
	small, err := dev.Register(unsafe.Pointer(unsafe.SliceData(b)), 512<<10, remote)
	require.NoError(t, err)
	_, err = dev.Register(unsafe.Pointer(unsafe.SliceData(b)), 2<<20, remote)
	require.ErrorIs(t, err, fault.ErrResourceExhausted)
	assert.ErrorContains(t, err, "RLIMIT_MEMLOCK is 1.0 MiB (1048576 bytes)")
	assert.ErrorContains(t, err, "2.0 MiB more are wanted")
	require.NoError(t, small.Close())
	require.NoError(t, dev.Close())
}

func TestDevicePostAllocatesNothing(t *testing.T) {
	d := open(t, names(t)[0])
	m := register(t, d, 4096, remote)
	p := pairOf(t, d, d, usual)
	wrs, sges, buf := batchOf(m, 8), m.first(8), make([]nic.Completion, 16)
	assert.Zero(t, testing.AllocsPerRun(50, func() { postAndPoll(t, d, p.a, wrs, sges, buf, 0) }))
	assert.Zero(t, testing.AllocsPerRun(50, func() { postAndPoll(t, d, p.a, wrs, sges, buf, patience) }), "sleeping")
}

func batchOf(m *memories, n int) []nic.WR {
	wrs := make([]nic.WR, n)
	for i := range wrs {
		wrs[i] = m.write(uint64(i), i == n-1)
	}
	return wrs
}

func postAndPoll(t testing.TB, d *device, q nic.QP, wrs []nic.WR, sges []nic.SGE, buf []nic.Completion, sleep time.Duration) {
	if n, err := q.Post(wrs, sges); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	for {
		n, err := d.Next(buf, 0, sleep)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return
		}
	}
}

// BenchmarkPostAndPoll is a batch of 16 WRITEs of 8 bytes with one signaled; SoftRoCE carries them out within the call.
func BenchmarkPostAndPoll(b *testing.B) {
	d := open(b, names(b)[0])
	m := register(b, d, 4096, remote)
	p := pairOf(b, d, d, nic.QPConfig{MaxSend: 64, MaxRecv: 1, MaxSGE: 1, MaxSignaled: 64})
	wrs, sges, buf := batchOf(m, 16), m.first(8), make([]nic.Completion, 16)
	b.ReportAllocs()
	for b.Loop() {
		postAndPoll(b, d, p.a, wrs, sges, buf, 0)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(wrs)), "ns/WR")
}

// BenchmarkEmptyPoll is what a look into empty queues costs.
func BenchmarkEmptyPoll(b *testing.B) {
	d := open(b, names(b)[0])
	buf := make([]nic.Completion, 16)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := d.Next(buf, 0, 0); n != 0 || err != nil {
			b.Fatal(n, err)
		}
	}
}
