package route

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs/sysfstest"
)

func TestNetworks(t *testing.T) {
	all, err := Networks()
	require.NoError(t, err)
	assert.Contains(t, all["lo"], netip.MustParsePrefix("127.0.0.1/8"))
}

// reaches asks for a rail on an interface.
func reaches(dev, from, to string) bool {
	return Reach(pick.Rail{Netdev: dev}, sysfstest.GID(0, from, dev), netip.MustParseAddr(to))
}

func TestReach(t *testing.T) {
	assert.True(t, reaches("lo", "127.0.0.1", "127.0.0.2"))
	assert.False(t, reaches("lo", "127.0.0.1", "192.0.2.1"), "an IPv4 socket bound to lo would be told yes")
	assert.False(t, reaches("lo", "127.0.0.1", "::1"))
	assert.False(t, reaches("none0", "127.0.0.1", "127.0.0.2"))
	assert.False(t, reaches("lo", "127.0.0.1", "224.0.0.1"))
	assert.False(t, reaches("lo", "127.0.0.1", "0.0.0.0"))
	assert.True(t, Reach(pick.Rail{Netdev: "lo"}, sysfstest.GID(0, "127.0.0.1", ""), netip.MustParseAddr("127.0.0.2")), "a GID without an interface is on the rail's")
}

// TestReachBetweenCards lays out a host with two cards, one of them with a router behind it, in a network namespace of its own.
func TestReachBetweenCards(t *testing.T) {
	const inside = "KVXFER_TEST_NAMESPACE"
	if os.Getenv(inside) == "" {
		again := exec.Command("unshare", "--net", "--user", "--map-root-user", os.Args[0], "-test.run=^TestReachBetweenCards$", "-test.v")
		again.Env = append(os.Environ(), inside+"=1")
		out, err := again.CombinedOutput()
		if why := noNamespace(out); why != "" && os.Getenv("CI") == "" {
			t.Skip(why)
		}
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS: TestReachBetweenCards")
		return
	}
	runtime.LockOSThread()
	for _, command := range [][]string{
		{"link", "set", "lo", "up"},
		{"link", "add", "c0", "type", "veth", "peer", "name", "d0"}, {"link", "set", "d0", "up"},
		{"link", "add", "c1", "type", "veth", "peer", "name", "d1"}, {"link", "set", "d1", "up"},
		{"addr", "add", "10.0.0.1/24", "dev", "c0"}, {"addr", "add", "10.1.0.1/24", "dev", "c1"},
		{"addr", "add", "2001:db8::1/64", "dev", "c0", "nodad"},
		{"link", "set", "c0", "up"}, {"link", "set", "c1", "up"},
		{"route", "add", "default", "via", "10.0.0.254"},
		{"route", "add", "10.9.0.0/16", "nexthop", "via", "10.0.0.254", "nexthop", "via", "10.1.0.254"},
		{"route", "add", "blackhole", "10.8.0.0/16"},
		{"route", "add", "10.20.0.0/16", "via", "10.1.0.254", "table", "100"}, {"rule", "add", "from", "10.1.0.1", "table", "100"},
	} {
		out, err := exec.Command("ip", command...).CombinedOutput()
		require.NoError(t, err, "ip %v: %s", command, out)
	}
	for _, x := range []struct {
		dev, from, to string
		want          bool
	}{
		{"c0", "10.0.0.1", "10.0.0.7", true},
		{"c1", "10.1.0.1", "10.1.0.7", true},
		{"c0", "10.0.0.1", "10.5.0.1", true},  // by the default route
		{"c1", "10.1.0.1", "10.5.0.1", false}, // that one leaves through c0
		{"c1", "10.1.0.1", "10.0.0.7", false},
		{"c0", "10.0.0.1", "10.9.0.1", true}, {"c1", "10.1.0.1", "10.9.0.1", true}, // several ways
		{"c0", "10.0.0.1", "10.8.0.1", false},
		{"c1", "10.1.0.1", "10.20.0.1", true}, // by a rule on the source
		{"c0", "2001:db8::1", "2001:db8::7", true},
		{"c0", "2001:db8::1", "2001:db8:1::7", false},
		{"c1", "fe80::1", "fe80::2", true}, // every link has these
	} {
		assert.Equal(t, x.want, reaches(x.dev, x.from, x.to), "%+v", x)
	}
	all, err := Networks()
	require.NoError(t, err)
	assert.Contains(t, all["c0"], netip.MustParsePrefix("2001:db8::1/64"))
	_, err = net.InterfaceByName("c0")
	require.NoError(t, err)
}

// noNamespace says that this machine gives no namespaces away, or has no unshare.
func noNamespace(out []byte) string {
	if _, err := exec.LookPath("unshare"); err != nil {
		return "there is no unshare"
	}
	if _, err := exec.LookPath("ip"); errors.Is(err, exec.ErrNotFound) {
		return "there is no ip"
	}
	for _, s := range []string{"unshare failed", "uid_map"} {
		if bytes.Contains(out, []byte(s)) {
			return string(out)
		}
	}
	return ""
}

func FuzzAnswer(f *testing.F) {
	q := question(netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), 3)
	q[4] = unix.RTM_NEWROUTE
	q[unix.SizeofNlMsghdr+7] = unix.RTN_UNICAST
	f.Add(q, 3)
	hop := append([]byte{8, 0, 0, 0}, 3, 0, 0, 0)
	f.Add(attribute(bytes.Clone(q[:headerSize]), unix.RTA_MULTIPATH, append(bytes.Clone(hop), hop...)), 3)
	f.Fuzz(func(t *testing.T, b []byte, oif int) {
		yes := answer(b, oif)
		if yes && (oif < -1<<31 || oif >= 1<<32) {
			t.Fatal("no interface has that index")
		}
		if yes && answer(b[:min(len(b), headerSize)], oif) {
			t.Fatal("an answer without attributes names no interface")
		}
	})
}
