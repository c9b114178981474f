package natskv_test

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/registry/natskv"
	rt "github.com/kvxfer/kvxfer/registry/registrytest"
)

// cluster is three NATS servers that know each other.
type cluster struct {
	dir     string
	clients [3]int // ports
	routes  [3]int
	servers [3]*natsserver.Server // nil: not running
}

func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { require.NoError(t, l.Close()) }()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	ports := freePorts(t, 6)
	c := &cluster{dir: t.TempDir(), clients: [3]int(ports[:3]), routes: [3]int(ports[3:])}
	for i := range c.servers {
		c.start(t, i)
	}
	t.Cleanup(func() {
		for i := range c.servers {
			c.stop(i)
		}
	})
	return c
}

func (c *cluster) start(t testing.TB, i int) {
	t.Helper()
	var routes []*url.URL
	for _, p := range c.routes {
		routes = append(routes, &url.URL{Scheme: "nats", Host: fmt.Sprintf("127.0.0.1:%d", p)})
	}
	s, err := natsserver.NewServer(&natsserver.Options{
		ServerName: fmt.Sprintf("s%d", i), Host: "127.0.0.1", Port: c.clients[i], NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: filepath.Join(c.dir, fmt.Sprint(i)), JetStreamMaxMemory: 256 << 20, JetStreamMaxStore: 64 << 20,
		Cluster: natsserver.ClusterOpts{Name: "kvxfer", Host: "127.0.0.1", Port: c.routes[i]}, Routes: routes,
	})
	require.NoError(t, err)
	s.Start()
	require.True(t, s.ReadyForConnections(rt.Wait))
	c.servers[i] = s
}

func (c *cluster) stop(i int) {
	if s := c.servers[i]; s != nil {
		c.servers[i] = nil
		s.Shutdown()
		s.WaitForShutdown()
	}
}

// leader is the server that leads the bucket's stream, -1 while there is none.
func (c *cluster) leader() int {
	for i, s := range c.servers {
		if s != nil && s.JetStreamIsStreamLeader(natsserver.DEFAULT_GLOBAL_ACCOUNT, "KV_"+natskv.DefaultBucket) {
			return i
		}
	}
	return -1
}

// options use every server, in an order that differs from node to node.
func (c *cluster) options(i int, heartbeat, ttl time.Duration) natskv.Options {
	urls := make([]string, 3)
	for j := range urls {
		urls[j] = fmt.Sprintf("nats://127.0.0.1:%d", c.clients[(i+j)%3])
	}
	return natskv.Options{URL: strings.Join(urls, ","), Name: fmt.Sprintf("n%03d", i), Replicas: 3, Heartbeat: heartbeat, TTL: ttl, Logger: quiet()}
}

// traffic is what went through all servers since their starts, the messages between them included.
type traffic struct{ inMsgs, outMsgs, inBytes, outBytes int64 }

func (c *cluster) traffic(t testing.TB) (sum traffic) {
	t.Helper()
	for _, s := range c.servers {
		if s == nil {
			continue
		}
		v, err := s.Varz(nil)
		require.NoError(t, err)
		sum.inMsgs, sum.outMsgs, sum.inBytes, sum.outBytes = sum.inMsgs+v.InMsgs, sum.outMsgs+v.OutMsgs, sum.inBytes+v.InBytes, sum.outBytes+v.OutBytes
	}
	return sum
}
