package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/peertls/certtest"
)

// machine is a host in good order, of which a test changes what it is about.
func machine(files map[string]string) *Host {
	tree := fstest.MapFS{}
	for name, text := range map[string]string{
		"proc/meminfo":      "MemTotal:  16000000 kB\nMemAvailable:  8000000 kB\nHugePages_Total:  12\n",
		"proc/self/cgroup":  "0::/kv/daemon\n",
		"proc/self/uid_map": "         0          0 4294967295\n",
		"sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
		"sys/devices/system/node/online":                                  "0\n",
		"sys/kernel/mm/transparent_hugepage/shmem_enabled":                "always within_size [advise] never\n",
	} {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return &Host{FS: tree, CPUs: 8, Access: func(string) error { return nil },
		Networks: func() (map[string][]netip.Prefix, error) {
			return map[string][]netip.Prefix{"eth2": {netip.MustParsePrefix("10.2.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")}}, nil
		}, UID: os.Geteuid(), HasAVX2: func() bool { return true },
		Release:  func() string { return "6.8.0-31-generic" },
		Rlimit:   func(int) (uint64, uint64, error) { return 1024, 65536, nil },
		Adjtimex: func() (int, error) { return 0, nil },
		Statfs: func(string) (unix.Statfs_t, error) {
			return unix.Statfs_t{Type: 0xef53, Bsize: 4096, Bavail: 1 << 30}, nil
		},
		Interfaces: func() ([]Interface, error) {
			return []Interface{{Name: "lo", MTU: 65536, Up: true, Addrs: []string{"127.0.0.1", "::1"}},
				{Name: "eth0", MTU: 9000, Up: true, Addrs: []string{"10.0.0.1"}}, {Name: "eth1", MTU: 1500, Addrs: []string{"10.0.1.1"}}}, nil
		}}
}

func subject(t *testing.T, h *Host) *Subject {
	dir := t.TempDir()
	return &Subject{Host: h, Socket: filepath.Join(dir, "s"), Config: &config.Config{Node: "n0", Tenant: "default", StateDir: filepath.Join(dir, "state"),
		Listen: "127.0.0.1:0", Advertise: "10.0.0.1:7420", HTTP: "127.0.0.1:0", Providers: []string{"shm", "tcp"}}}
}

// trouble holds a check to what every check promises.
func trouble(t *testing.T, c Check, want Verdict, finding string) {
	t.Helper()
	assert.Equal(t, want, c.Verdict, "%+v", c)
	assert.Contains(t, c.Finding, finding)
	assert.Equal(t, want != OK, c.Remedy != "", "a remedy, and only where something is to be done: %+v", c)
}

func TestPageListsEveryCheck(t *testing.T) {
	raw, err := os.ReadFile("../../docs/doctor.md")
	require.NoError(t, err)
	at := 0
	for _, id := range append(append([]string(nil), IDs...), "port-DEVICE:N", "provider-"+config.Providers[0], "provider-"+config.Providers[1]) {
		i := strings.Index(string(raw), "| `"+id+"` |")
		require.Positive(t, i, "docs/doctor.md has no row of %s", id)
		assert.Greater(t, i, at, "%s is not in its place", id)
		at = i
	}
}

func TestTroubleHasARemedy(t *testing.T) {
	for _, s := range []*Subject{subject(t, This()), subject(t, machine(nil)), {Host: machine(nil), ConfigErr: errors.New("lanes: 99"), Socket: "/nowhere/s"}} {
		checks := Run(s)
		require.Len(t, checks, len(IDs))
		for i, c := range checks {
			assert.Equal(t, IDs[i], c.ID)
			assert.NotEmpty(t, c.Finding)
			assert.Equal(t, c.Verdict != OK, c.Remedy != "", "%+v", c)
		}
	}
	assert.Equal(t, OK, Worst(nil))
	assert.Equal(t, Warn, Worst([]Check{{Verdict: OK}, {Verdict: Warn}, {Verdict: OK}}))
	assert.Equal(t, Fail, Worst([]Check{{Verdict: Fail}, {Verdict: Warn}}))
}

func TestEmptyHost(t *testing.T) {
	h := &Host{FS: fstest.MapFS{}, HasAVX2: func() bool { return false }, Release: func() string { return "" },
		Rlimit:     func(int) (uint64, uint64, error) { return 0, 0, unix.EPERM },
		Adjtimex:   func() (int, error) { return -1, unix.EPERM },
		Statfs:     func(string) (unix.Statfs_t, error) { return unix.Statfs_t{}, unix.ENOSYS },
		Interfaces: func() ([]Interface, error) { return nil, unix.EPERM },
		Networks:   func() (map[string][]netip.Prefix, error) { return nil, unix.EPERM },
		Access:     func(string) error { return unix.EPERM }}
	for _, c := range Run(subject(t, h)) {
		assert.Equal(t, c.Verdict != OK, c.Remedy != "", "%+v", c)
	}
}

func TestHosts(t *testing.T) {
	h := machine(nil)
	for release, want := range map[string]Verdict{"6.8.0": OK, "6.5": OK, "6.4.9": Warn, "5.15.0-x": Warn, "5.2.1": Fail, "4.19": Fail, "": Warn, "x": Warn} {
		h.Release = func() string { return release }
		trouble(t, h.kernel(), want, "")
	}
	for limit, want := range map[uint64]Verdict{100: Fail, 1024: Warn, 65536: OK, math.MaxUint64: OK} {
		h.Rlimit = func(int) (uint64, uint64, error) { return 64, limit, nil }
		trouble(t, h.openFiles(), want, "")
	}
	trouble(t, machine(nil).memory(), OK, "7.6 GiB")
	trouble(t, machine(map[string]string{"sys/fs/cgroup/kv/memory.max": "134217728\n", "sys/fs/cgroup/kv/daemon/memory.max": "max\n"}).memory(), Warn,
		"at most 128.0 MiB (/kv/memory.max)")
	trouble(t, machine(nil).hugePages(), OK, "shared memory: advise; reserved: 12")
	trouble(t, machine(map[string]string{"sys/devices/system/node/online": "0-1"}).numa(), OK, "nodes 0-1")
	h = machine(nil)
	h.Adjtimex = func() (int, error) { return timeError, nil }
	trouble(t, h.clock(), Warn, "not synchronised")
	trouble(t, machine(map[string]string{"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet"}).clock(), Warn, "hpet")
	trouble(t, machine(nil).clock(), OK, "tsc")
	trouble(t, machine(nil).container(), OK, "none seen")
	trouble(t, machine(map[string]string{".dockerenv": "", "proc/self/uid_map": "0 100000 65536"}).container(), OK, "a user namespace")
	trouble(t, machine(map[string]string{"dev/nvidiactl": ""}).cuda(), OK, "no libcuda")
	h.HasAVX2 = func() bool { return false }
	trouble(t, h.cpu(), Warn, "no AVX2")
	for _, c := range []Check{This().memfd(), This().pidfd(), This().processMemory()} {
		assert.NotEqual(t, Fail, c.Verdict, "%+v", c)
	}
}

func TestPorts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	s := subject(t, machine(nil))
	trouble(t, s.listen(), OK, "is free")
	s.Config.Listen, s.Config.HTTP = l.Addr().String(), l.Addr().String()
	trouble(t, s.listen(), Fail, "address already in use")
	s.Daemon = &Daemon{Node: "n0", PeerAddr: l.Addr().String(), HTTPAddr: "127.0.0.1:1", Registry: true}
	trouble(t, s.listen(), OK, "running daemon's")
	trouble(t, s.http(), Fail, "address already in use")
	s.Config.HTTP = ""
	trouble(t, s.http(), Warn, "off")
	trouble(t, s.daemon(), OK, "n0")
	s.Daemon.Draining = true
	trouble(t, s.daemon(), Warn, "draining")

	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer func() { _ = unix.Close() }()
	s.Daemon, s.Socket, s.NoDaemon = nil, unix.Addr().String(), &fault.Error{Code: fault.DaemonUnavailable}
	trouble(t, s.daemon(), Warn, "no daemon answers")
	trouble(t, s.socket(), OK, "is left from a former daemon")
	s.NoDaemon = &fault.Error{Code: fault.DeadlineExceeded}
	trouble(t, s.daemon(), Fail, "does not answer")
	trouble(t, s.socket(), OK, "is served")
	s.NoDaemon = &fault.Error{Code: fault.PermissionDenied}
	trouble(t, s.daemon(), Warn, "does not let this user in")
	s.NoDaemon = &fault.Error{Code: fault.DaemonUnavailable, Err: fs.ErrPermission}
	trouble(t, s.daemon(), Warn, "does not let this user in")

	s = subject(t, machine(map[string]string{"sys/class/net/eth0/speed": "25000\n", "sys/class/net/eth0/device/numa_node": "1\n"}))
	trouble(t, s.advertise(), OK, "eth0, MTU 9000, 25000 Mbit/s, NUMA node 1")
	for addr, want := range map[string]Verdict{"10.0.1.1:1": Fail, "127.0.0.1:1": Warn, "[::1]:1": Warn, "192.0.2.1:1": Warn, "host.example:1": OK} {
		s.Config.Advertise = addr
		trouble(t, s.advertise(), want, addr)
	}
}

func TestRegistry(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("INFO {}\r\n"))
			_ = c.Close()
		}
	}()
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	dead := other.Addr().String()
	_ = other.Close()
	s := subject(t, machine(nil))
	trouble(t, s.registry(), OK, "embedded")
	s.Config.NATS = "nats://u:p@" + l.Addr().String()
	trouble(t, s.registry(), OK, l.Addr().String()+" answers")
	s.Config.NATS += ",nats://" + dead
	trouble(t, s.registry(), Warn, dead+" does not")
	s.Config.NATS = "nats://u:p@" + dead
	trouble(t, s.registry(), Fail, dead)
	s.Daemon = &Daemon{Node: "n0"}
	trouble(t, s.registry(), Warn, "lost its registry")
}

func TestNoSecretIsTold(t *testing.T) {
	const password = "Tr0ub4dor"
	_, err := config.Load([]string{"--nats", "nats//x:" + password}, nil)
	require.Error(t, err)
	s := subject(t, machine(nil))
	s.Config.NATS = "nats://user:" + password + "@127.0.0.1:1"
	for _, s := range []*Subject{s, {Host: machine(nil), ConfigErr: err}} {
		for _, c := range Run(s) {
			assert.NotContains(t, c.Finding+c.Remedy, password)
		}
	}
}

func TestDirectories(t *testing.T) {
	s := subject(t, machine(nil))
	trouble(t, s.stateDir(), OK, "not made yet")
	require.NoError(t, os.Mkdir(s.Config.StateDir, 0o755))
	trouble(t, s.stateDir(), OK, "ext4, 4096.0 GiB free")
	require.NoError(t, os.WriteFile(filepath.Join(s.Config.StateDir, "x"), nil, 0o600))
	require.NoError(t, os.Chmod(s.Config.StateDir, 0o755))
	trouble(t, s.stateDir(), Fail, "mode 0755")
	require.NoError(t, os.Chmod(s.Config.StateDir, 0o700))
	for _, x := range []struct {
		st      unix.Statfs_t
		want    Verdict
		finding string
	}{
		{unix.Statfs_t{Type: 0x6969, Bsize: 4096, Bavail: 1 << 30}, Fail, "nfs"},
		{unix.Statfs_t{Type: 0xef53, Bsize: 4096, Bavail: 1 << 10}, Fail, "4.0 MiB free"},
		{unix.Statfs_t{Type: 0xef53, Bsize: 4096, Bavail: 1 << 16}, Warn, "256.0 MiB free"},
		{unix.Statfs_t{Type: 0x01021994, Bsize: 4096, Bavail: 1 << 30}, Warn, "tmpfs"},
		{unix.Statfs_t{Type: 0x1234, Bsize: 4096, Bavail: 1 << 30}, OK, "file system 0x1234"},
	} {
		s.Host.Statfs = func(string) (unix.Statfs_t, error) { return x.st, nil }
		trouble(t, s.stateDir(), x.want, x.finding)
	}
	s.Config.StateDir = filepath.Join(s.Config.StateDir, "x", "below")
	trouble(t, s.stateDir(), Fail, "")

	trouble(t, s.socket(), OK, "is free")
	require.NoError(t, os.WriteFile(s.Socket, nil, 0o600))
	trouble(t, s.socket(), Fail, "is no socket")
	s.Socket = filepath.Join(t.TempDir(), "open", "s")
	trouble(t, s.socket(), OK, "not made yet")
	require.NoError(t, os.Mkdir(filepath.Dir(s.Socket), 0o700))
	require.NoError(t, os.Chmod(filepath.Dir(s.Socket), 0o777))
	trouble(t, s.socket(), Fail, "others can replace the socket")
}

func TestDiskOfADirectory(t *testing.T) {
	dir := t.TempDir()
	var st unix.Stat_t
	require.NoError(t, unix.Stat(dir, &st))
	uevent := fmt.Sprintf("sys/dev/block/%d:%d/uevent", unix.Major(st.Dev), unix.Minor(st.Dev))
	for name, of := range map[string]string{"sda": "sda", "sda12": "sda", "nvme0n1": "nvme0n1", "nvme0n1p2": "nvme0n1", "vdb1": "vdb"} {
		h := machine(map[string]string{uevent: "MAJOR=8\nDEVNAME=" + name + "\n", "sys/class/block/" + of + "/queue/rotational": "1\n"})
		assert.Equal(t, " on "+name+" (rotating, by its word: an fsync waits for it to turn)", h.disk(dir))
	}
	assert.Empty(t, machine(nil).disk(dir))
}

func TestCertificates(t *testing.T) {
	s := subject(t, machine(nil))
	trouble(t, s.certificates(), OK, "in clear")
	ours := certtest.New("ours")
	write := func(l certtest.Leaf) {
		l.DNS = []string{"n0"}
		var err error
		s.Config.TLSCert, s.Config.TLSKey, s.Config.TLSCA, err = ours.Write(t.TempDir(), l)
		require.NoError(t, err)
	}
	write(certtest.Leaf{NotAfter: time.Now().AddDate(1, 0, 0)})
	trouble(t, s.certificates(), OK, "valid until")
	s.Config.Node = "other"
	trouble(t, s.certificates(), Fail, "other")
	s.Config.Node = "n0"
	require.NoError(t, os.Chmod(s.Config.TLSKey, 0o644))
	trouble(t, s.certificates(), Warn, "may be read by others")
	require.NoError(t, os.WriteFile(s.Config.TLSCA, []byte("nothing"), 0o600))
	trouble(t, s.certificates(), Fail, "no certificate")
	require.NoError(t, os.Remove(s.Config.TLSCA))
	trouble(t, s.certificates(), Fail, "no such file")
	write(certtest.Leaf{})
	trouble(t, s.certificates(), Warn, "valid until")
	write(certtest.Leaf{NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	trouble(t, s.certificates(), Fail, "ended")
	write(certtest.Leaf{NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour)})
	trouble(t, s.certificates(), Fail, "from")
}
