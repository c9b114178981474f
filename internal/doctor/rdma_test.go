package doctor

import (
	"errors"
	"math"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs/sysfstest"
)

const withLibrary = "usr/lib64/libibverbs.so.1"

// rdmaMachine is machine with devices.
func rdmaMachine(t *testing.T, files map[string]string, devs ...nic.DeviceInfo) *Subject {
	h := machine(files)
	tree := sysfstest.Tree{MapFS: h.FS.(fstest.MapFS)}
	tree.Interface("eth2", 9000)
	for i, d := range devs {
		tree.Device(d)
		tree.File("sys/class/infiniband_verbs/uverbs"+string(rune('0'+i))+"/ibdev", d.Name)
	}
	return subject(t, h)
}

func mlx() nic.DeviceInfo { return sysfstest.RoCE("mlx5_2", "eth2", 1, 100, "10.2.0.1", "2001:db8::1") }

// cards is a nic.Host whose devices say what a test wants.
type cards struct {
	attr   nic.Attr
	mtu    int
	dmabuf error
	err    error
	open   *int // how many are open
}

func (c cards) Devices() ([]nic.DeviceInfo, error) { return nil, nil }

func (c cards) Open(string) (nic.Device, error) {
	if c.err != nil {
		return nil, c.err
	}
	*c.open++
	return card{cards: c}, nil
}

type card struct {
	nic.Device
	cards
}

func (c card) Attr() nic.Attr                      { return c.attr }
func (c card) Port(port int) (nic.PortInfo, error) { return nic.PortInfo{Port: port, MTU: c.mtu}, nil }
func (c card) ProbeDMABuf() error                  { return c.dmabuf }
func (c card) Close() error                        { *c.open--; return nil }

// silent is a card whose library cannot be asked for dma-bufs.
type silentCards struct{ cards }

func (c silentCards) Open(string) (nic.Device, error) {
	*c.open++
	return struct{ nic.Device }{card{cards: c.cards}}, nil
}

func TestRDMAHosts(t *testing.T) {
	trouble(t, subject(t, machine(nil)).verbs(), OK, "no RDMA device, no libibverbs")
	trouble(t, rdmaMachine(t, map[string]string{withLibrary: ""}, mlx()).verbs(), OK, "1 of 1 ports can be used: mlx5_2:1; /usr/lib64/libibverbs.so.1")
	c := rdmaMachine(t, nil, mlx()).verbs()
	trouble(t, c, Warn, "RDMA devices mlx5_2 and no libibverbs")
	assert.Contains(t, c.Remedy, "apt install libibverbs1")
	s := rdmaMachine(t, map[string]string{withLibrary: ""}, mlx())
	s.Rails = pick.Options{Deny: []string{"mlx5_*"}}
	trouble(t, s.verbs(), Warn, "mlx5_2:1: denied by mlx5_*")
	for _, p := range Ports(s) {
		trouble(t, p, OK, "not used: denied by mlx5_*")
	}
	s = rdmaMachine(t, map[string]string{withLibrary: ""}, mlx())
	s.Host.RDMA = cards{err: fault.New(fault.NotSupported, "open", "no driver for it")}
	trouble(t, s.verbs(), Warn, "mlx5_2 cannot be opened: kvxfer: open")
	trouble(t, s.rdmaMemory(), OK, "no device was asked")
}

func TestRDMAAccess(t *testing.T) {
	trouble(t, subject(t, machine(nil)).rdmaAccess(), OK, "no RDMA device")
	s := rdmaMachine(t, nil, mlx())
	trouble(t, s.rdmaAccess(), OK, "may use /dev/infiniband/uverbs0 of mlx5_2")
	for err, finding := range map[error]string{unix.EACCES: "permission denied", unix.ENOENT: "/dev/infiniband/uverbs0 of mlx5_2 is not here"} {
		s.Host.Access = func(string) error { return err }
		trouble(t, s.rdmaAccess(), Warn, finding)
	}
	other := sysfstest.RoCE("rxe0", "eth0", -1, 10)
	s = rdmaMachine(t, nil, mlx())
	sysfstest.Tree{MapFS: s.Host.FS.(fstest.MapFS)}.Device(other)
	trouble(t, s.rdmaAccess(), Warn, "rxe0 has no device file")
	s = subject(t, machine(nil))
	sysfstest.Tree{MapFS: s.Host.FS.(fstest.MapFS)}.Device(other)
	c := s.rdmaAccess()
	trouble(t, c, Warn, "no /sys/class/infiniband_verbs")
	assert.Contains(t, c.Remedy, "modprobe ib_uverbs")
}

func TestRDMAMemory(t *testing.T) {
	trouble(t, subject(t, machine(nil)).rdmaMemory(), OK, "no RDMA device")
	trouble(t, rdmaMachine(t, map[string]string{"sys/module/nvidia_peermem/x": ""}, mlx()).rdmaMemory(), OK, "nvidia_peermem is loaded; the devices were not asked")
	left := 0
	for _, x := range []struct {
		c    nic.Host
		want string
	}{
		{cards{dmabuf: unix.EBADF, attr: nic.Attr{RelaxedOrdering: true, Windows2B: true}, open: &left}, "mlx5_2: dma-buf, relaxed ordering, memory windows 2B; no nvidia-peermem"},
		{cards{dmabuf: unix.EOPNOTSUPP, open: &left}, "mlx5_2: no dma-buf, no relaxed ordering, no memory windows 2B"},
		{cards{dmabuf: errors.Join(errors.New("ibv_reg_dmabuf_mr"), unix.EPROTONOSUPPORT), open: &left}, "no dma-buf"},
		{cards{dmabuf: fault.New(fault.NotSupported, "probe", "libibverbs is too old"), open: &left}, "no dma-buf"},
		{cards{dmabuf: unix.ENOMEM, open: &left}, "dma-buf not known"},
		{cards{open: &left}, "dma-buf not known"},
		{silentCards{cards{open: &left}}, "dma-buf not known"},
	} {
		s := rdmaMachine(t, nil, mlx())
		s.Host.RDMA = x.c
		trouble(t, s.rdmaMemory(), OK, x.want)
		assert.Zero(t, left, "what was opened is closed")
	}
}

func TestPortsOfDevices(t *testing.T) {
	assert.Empty(t, Ports(subject(t, machine(nil))))
	one := func(s *Subject) Check {
		all := Ports(s)
		require.Len(t, all, 1)
		assert.Equal(t, "port-mlx5_2:1", all[0].ID)
		return all[0]
	}
	s := rdmaMachine(t, nil, mlx())
	trouble(t, one(s), OK, "ACTIVE, Ethernet on eth2, 100 Gbit/s, MTU 4096 (derived from 9000 of eth2), NUMA node 1, GID 3, 10.2.0.1 (RoCE v2), and 2 more, "+
		"ECN and PFC not readable here (dcb pfc show dev eth2), no counters of losses here")
	left := 0
	s = rdmaMachine(t, map[string]string{"sys/class/net/eth2/ecn/roce_np/enable/3": "1", "sys/class/net/eth2/ecn/roce_rp/enable/3": "0"}, mlx())
	s.Host.RDMA = cards{mtu: 2048, open: &left}
	trouble(t, one(s), OK, "MTU 2048, NUMA")
	trouble(t, one(s), OK, "notifies for priorities 3, slows down for none")

	for _, x := range []struct {
		what     string
		counters map[string]uint64
		want     Verdict
		finding  string
	}{
		{"clean", map[string]uint64{"out_of_sequence": 0}, OK, "no losses and no congestion counted"},
		{"some", map[string]uint64{"out_of_sequence": 99, "np_cnp_sent": 1 << 40}, OK, "out_of_sequence 99, cnp_sent 1099511627776"},
		{"few of many", map[string]uint64{"out_of_sequence": 5000, "sent_pkts": 1 << 30, "rcvd_pkts": 1 << 30}, OK, "out_of_sequence 5000 (packets: 1073741824 sent, 1073741824 received)"},
		{"many", map[string]uint64{"local_ack_timeout_err": 300, "packet_seq_err": 200, "sent_pkts": 1 << 20, "rcvd_pkts": 1 << 20}, Warn, "timeout 300, sequence_nak 200"},
		{"of not known how many", map[string]uint64{"local_ack_timeout_err": 1 << 30}, OK, "timeout 1073741824"},
		{"beyond", map[string]uint64{"local_ack_timeout_err": math.MaxUint64, "packet_seq_err": math.MaxUint64, "sent_pkts": math.MaxUint64, "rcvd_pkts": math.MaxUint64}, Warn, "timeout"},
	} {
		s := rdmaMachine(t, nil, mlx())
		for name, n := range x.counters {
			sysfstest.Tree{MapFS: s.Host.FS.(fstest.MapFS)}.Counter("mlx5_2", 1, "hw_counters", name, n)
		}
		trouble(t, one(s), x.want, x.finding)
	}

	down := mlx()
	down.Ports[0].State = "DOWN"
	trouble(t, one(rdmaMachine(t, nil, down)), OK, "DOWN, Ethernet on eth2, 100 Gbit/s")
	empty := mlx()
	empty.Ports[0].GIDs = nil
	c := one(rdmaMachine(t, map[string]string{"sys/module/ib_core/parameters/netns_mode": "Y"}, empty))
	trouble(t, c, Warn, "its GID table is empty: another network namespace has its interface")
	assert.Contains(t, c.Remedy, "hostNetwork")
	foreign := mlx()
	foreign.Ports[0].GIDs = foreign.Ports[0].GIDs[2:3] // RoCE v1
	c = one(rdmaMachine(t, nil, foreign))
	trouble(t, c, Warn, "RoCE v1 only")
	ib := nic.DeviceInfo{Name: "ib0", NUMA: -1, Ports: []nic.PortInfo{{Port: 1, LinkLayer: nic.InfiniBand, State: "ACTIVE", Gbps: 400, LID: 26,
		GIDs: []nic.GIDInfo{{GID: [16]byte{0: 0xfe, 1: 0x80, 15: 7}}}}}}
	all := Ports(rdmaMachine(t, nil, ib))
	require.Len(t, all, 1)
	trouble(t, all[0], OK, "ACTIVE, InfiniBand, 400 Gbit/s, MTU not known, LID 26, GID fe80::7, credit flow control")
	assert.NotContains(t, all[0].Finding, "NUMA")
}

func TestMemlock(t *testing.T) {
	s := subject(t, machine(nil))
	s.Host.Rlimit = func(int) (uint64, uint64, error) { return 8 << 20, 8 << 20, nil }
	trouble(t, s.memlock(), OK, "8.0 MiB; without an RDMA device nothing locks memory")
	s = rdmaMachine(t, nil, mlx())
	s.Host.Rlimit = func(int) (uint64, uint64, error) { return 8 << 20, 8 << 20, nil }
	c := s.memlock()
	trouble(t, c, Warn, "8.0 MiB, the limit of this command: regions that do not fit")
	assert.Contains(t, c.Remedy, "LimitMEMLOCK=infinity")
	s.Host.Rlimit = func(int) (uint64, uint64, error) { return math.MaxUint64, 0, nil }
	trouble(t, s.memlock(), OK, "unlimited")
	s.Host.Rlimit = func(int) (uint64, uint64, error) { return 0, 0, unix.EPERM }
	trouble(t, s.memlock(), Warn, "cannot be read")

	const limits = "Limit                     Soft Limit           Hard Limit           Units\nMax file size             unlimited            unlimited            bytes\n" +
		"Max locked memory         LIMIT                unlimited            bytes\n"
	for _, x := range []struct {
		limit, cap string
		want       Verdict
		finding    string
	}{
		{"65536", "0000000000000000", Warn, "64 KiB, the limit of the daemon, 5.0 MiB registered now"},
		{"65536", "000001ffffffffff", OK, "64 KiB, which CAP_IPC_LOCK of the daemon lifts, 5.0 MiB registered now"},
		{"unlimited", "0000000000000000", OK, "unlimited, 5.0 MiB registered now"},
		{"x", "0000000000000000", Warn, "cannot be read"},
	} {
		s := rdmaMachine(t, map[string]string{"proc/42/limits": strings.Replace(limits, "LIMIT", x.limit, 1), "proc/42/status": "Name:\tkvxfer\nVmPin:\t    5120 kB\nCapEff:\t" + x.cap + "\n"}, mlx())
		s.Host.Rlimit = func(int) (uint64, uint64, error) { return 0, 0, unix.EPERM }
		s.Daemon = &Daemon{PID: 42}
		trouble(t, s.memlock(), x.want, x.finding)
	}
}
