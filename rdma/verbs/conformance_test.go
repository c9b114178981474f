package verbs

import (
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/testseed"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/fabrictest"
	"github.com/kvxfer/kvxfer/rdma/fabrictest/relay"
	"github.com/kvxfer/kvxfer/rdma/verbs/internal/softnic"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// TestConformance runs the contract's suite over simulated devices with memory windows, TestConformanceWithoutWindows over some
// that have none, so that fences reset queue pairs.
func TestConformance(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{New: softPair(Options{Drain: suiteDrain}), Bound: suiteBound})
}

func TestConformanceWithoutWindows(t *testing.T) {
	fabrictest.Run(t, fabrictest.Harness{New: softPair(Options{NoWindows: true, Drain: suiteDrain}), Bound: suiteBound})
}

const (
	suiteBound = time.Minute
	suiteDrain = 10 * time.Millisecond // the suite fences often, with peers that stand still
)

// suiteNode is a provider with its peer port; the suite closes the provider.
type suiteNode struct {
	*Provider
	addr string
}

func softPair(opt Options) func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
	return func(t testing.TB, clock rdma.Clock) fabrictest.Pair {
		f := softnic.New(softnic.Options{Seed: testseed.Seed(t)})
		ha, hb := f.Host("a", softDevices(1)...), f.Host("b", softDevices(2)...)
		opt := opt
		opt.Clock = clock
		opt.Networks = func() map[string][]netip.Prefix { return nil }
		opt.Reach = func(pick.Rail, nic.GIDInfo, netip.Addr) bool { return true }
		a, b := newSuiteNode(t, ha, opt), newSuiteNode(t, hb, opt)
		var wires []*softnic.Wire
		for _, d := range []string{"soft0", "soft1"} {
			wires = append(wires, f.Wire("a", d, "b", d), f.Wire("b", d, "a", d))
		}
		return suitePair(a, b, func(hold bool) {
			for _, w := range wires {
				if hold {
					w.Hold()
				} else {
					w.Release()
				}
			}
		})
	}
}

// softDevices are two rails of a host in two subnets.
func softDevices(host byte) []softnic.Device {
	var out []softnic.Device
	for k := range byte(2) {
		gid := netip.AddrFrom4([4]byte{10, 7, k, host}).As16()
		out = append(out, softnic.Device{Name: "soft" + string('0'+k), NUMA: -1, Windows2B: true, MaxSGE: 4, Ports: []nic.PortInfo{{Port: 1, LinkLayer: nic.Ethernet,
			Active: true, MTU: 4096, Gbps: 10, Netdev: "net" + string('0'+k), GIDs: []nic.GIDInfo{{Index: 1, GID: gid, Type: nic.RoCEv2}}}}})
	}
	return out
}

func newSuiteNode(t testing.TB, host nic.Host, opt Options) *suiteNode {
	// Small windows, so that full ones and several turns are met.
	opt.Host = host
	def(&opt.LanesPerRail, 2)
	def(&opt.MaxInFlight, 64)
	def(&opt.MaxInFlightLen, 8<<20)
	if os.Getenv("KVXFER_TEST_LOG") != "" {
		opt.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	p, err := New(opt)
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { _ = p.ServeSide(c, nil) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		wg.Wait()
	})
	return &suiteNode{p, ln.Addr().String()}
}

// suitePair joins two nodes. Packets are held or cut for all sessions at once: the wire does not tell them apart. Side channels are
// a session's own.
func suitePair(a, b *suiteNode, hold func(hold bool)) fabrictest.Pair {
	var ids atomic.Uint64
	var mu sync.Mutex
	relays := map[rdma.Initiator]*relay.Relay{}
	held := 0
	wire := func(by int) {
		mu.Lock()
		defer mu.Unlock()
		if held += by; held == 1 && by == 1 || held == 0 {
			hold(held == 1)
		}
	}
	connect := func(t testing.TB, from, to *suiteNode) fabrictest.Session {
		s := fabrictest.Session{InitiatorID: rdma.SessionID(ids.Add(1)), TargetID: rdma.SessionID(ids.Add(1))}
		var params []byte
		var err error
		s.Target, params, err = to.Accept(s.TargetID)
		require.NoError(t, err)
		r := relay.New(t, to.addr)
		s.Initiator, err = from.Connect(t.Context(), s.InitiatorID, r.Addr(), params)
		require.NoError(t, err)
		mu.Lock()
		relays[s.Initiator] = r
		mu.Unlock()
		return s
	}
	of := func(s fabrictest.Session) *relay.Relay {
		mu.Lock()
		defer mu.Unlock()
		return relays[s.Initiator]
	}
	return fabrictest.Pair{
		A: a, B: b,
		Connect:     func(t testing.TB) fabrictest.Session { return connect(t, a, b) },
		ConnectBack: func(t testing.TB) fabrictest.Session { return connect(t, b, a) },
		Cut:         func(s fabrictest.Session) { of(s).Cut() },
		Stall: func(s fabrictest.Session) func() {
			side := of(s).Stall()
			wire(1)
			return sync.OnceFunc(func() {
				wire(-1)
				side()
			})
		},
	}
}
