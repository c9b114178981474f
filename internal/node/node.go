package node

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/health"
	"github.com/kvxfer/kvxfer/internal/incarnation"
	"github.com/kvxfer/kvxfer/internal/localapi"
	"github.com/kvxfer/kvxfer/internal/logring"
	"github.com/kvxfer/kvxfer/internal/numa"
	"github.com/kvxfer/kvxfer/internal/peerlink"
	"github.com/kvxfer/kvxfer/internal/peertls"
	"github.com/kvxfer/kvxfer/internal/telemetry"
	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/gate"
	"github.com/kvxfer/kvxfer/registry"
	"github.com/kvxfer/kvxfer/registry/embedded"
	"github.com/kvxfer/kvxfer/registry/natskv"
	"github.com/kvxfer/kvxfer/xfer"
	"github.com/kvxfer/kvxfer/xfer/blockdb"
)

const (
	// startTimeout bounds the wait for a former process and for the registry.
	startTimeout = 30 * time.Second
	// noticeAfter is when the log says that a start waits.
	noticeAfter = 2 * time.Second
	// returnTime is how long clients of a former daemon have to register again before their blocks are forgotten.
	returnTime = 10 * time.Minute
	// endTimeout bounds each closing step that waits for the outside.
	endTimeout = 5 * time.Second
)

// Node is a running daemon.
type Node struct {
	cfg config.Config
	log *slog.Logger

	ring      *logring.Ring
	inc       *incarnation.Incarnation
	tel       *telemetry.Telemetry
	met       *telemetry.Metrics
	store     *blockdb.DB
	tls       *peertls.Identity // nil: peers are spoken to in clear
	makers    map[string]maker
	providers []rdma.Provider // the best first
	absent    []wire.Absence  // those that this host cannot use
	engine    *xfer.Engine
	links     *peerlink.Links
	nats      *embedded.Server
	dir       registry.Directory
	ages      func() (heartbeat, view time.Duration) // of the registry
	local     *localapi.Server
	info      Info

	wg     sync.WaitGroup
	failed chan error
	undo   []func() // what Start began, for when it fails and for Close, last first
	once   sync.Once

	stopped sync.Once      // nothing is granted any more
	level   *slog.LevelVar // of the log; nil: not this node's to change
	drained sync.Once

	mu    sync.Mutex
	ready error // why the node is not ready
}

var errStarting = fault.New(fault.Draining, "ready", "the node is starting")

// Start runs a daemon and returns when it serves. ctx bounds the start only.
func Start(ctx context.Context, cfg config.Config, log *slog.Logger, options ...Option) (_ *Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ring := logring.New(keptLines, keptLogBytes)
	log = slog.New(ring.Handler(log.Handler()))
	warnUnfenced(log)
	warnNext(log)
	n := &Node{cfg: cfg, log: log, ring: ring, makers: makers, failed: make(chan error, 1), ready: errStarting}
	for _, o := range options {
		o(n)
	}
	defer func() {
		if err != nil {
			n.unwind()
		}
	}()
	// Two steps wait for others: a former daemon's exit and the registry. Whoever watches learns that it is no hang.
	notice := time.AfterFunc(noticeAfter, func() {
		log.Info("still starting: waits for a former daemon of the state directory or for the registry", "state_dir", cfg.StateDir, "gives_up_after", startTimeout)
	})
	defer notice.Stop()
	for _, step := range []func(context.Context) error{
		n.loadCertificates, n.startIncarnation, n.startTelemetry, n.startMetrics, n.startStore, n.startRegistry, n.measure, n.startEngine, n.startHTTP, n.announce, n.startLocal,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	if err := writeInfo(cfg.StateDir, n.info); err != nil {
		return nil, err
	}
	n.setReady(nil)
	log.Info("serving", "node", cfg.Node, "epoch", n.info.Epoch, "socket", n.info.Socket, "peers", n.info.PeerAddr, "http", n.info.HTTPAddr,
		"providers", n.providerNames(), "version", version.Version)
	return n, nil
}

// warnUnfenced says of a build without fences what package gate says of it.
func warnUnfenced(log *slog.Logger) {
	if !gate.Fences {
		log.Error("this build does not fence memory that was taken back, it exists for one test and must not be used", "build_tag", "kvxfer_nofence")
	}
}

// warnNext says of a build that plays the next version what package version says of it.
func warnNext(log *slog.Logger) {
	if version.Next {
		log.Error("this build plays the next version, it exists for tests and must not be used", "build_tag", version.NextTag)
	}
}

// Info says where the node serves.
func (n *Node) Info() Info { return n.info }

// Failed delivers an error when the node can no longer keep its promises and must end.
func (n *Node) Failed() <-chan error { return n.failed }

func (n *Node) setReady(why error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = why
}

func (n *Node) readiness() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

// later registers what ends a part.
func (n *Node) later(f func()) { n.undo = append(n.undo, f) }

func (n *Node) unwind() {
	for len(n.undo) > 0 {
		f := n.undo[len(n.undo)-1]
		n.undo = n.undo[:len(n.undo)-1]
		f()
	}
}

func (n *Node) loadCertificates(context.Context) (err error) {
	if n.cfg.TLS() {
		n.tls, err = peertls.Load(peertls.Files{Cert: n.cfg.TLSCert, Key: n.cfg.TLSKey, CA: n.cfg.TLSCA}, n.cfg.Node, n.log)
	}
	return err
}

func (n *Node) startIncarnation(ctx context.Context) error {
	inc, err := incarnation.Acquire(ctx, n.cfg.StateDir, n.cfg.Node)
	if err != nil {
		return err
	}
	n.inc = inc
	removeInfo(n.cfg.StateDir)
	n.later(func() { removeInfo(n.cfg.StateDir); n.logged("incarnation", inc.Close()) })
	n.info = Info{Node: n.cfg.Node, Epoch: inc.Epoch(), Pid: os.Getpid(), Version: version.Version, Socket: n.cfg.Socket}
	n.later(n.wg.Wait)
	return nil
}

func (n *Node) startTelemetry(ctx context.Context) (err error) {
	n.tel, err = telemetry.Start(ctx, telemetry.Options{NodeName: n.cfg.Node, Version: version.Version, TraceFile: n.cfg.TraceFile, Keep: n.cfg.TraceKeep, NoEnvironment: n.cfg.NoEnvironment, Logger: n.log})
	if err != nil {
		return err
	}
	n.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		n.logged("telemetry", n.tel.Shutdown(ctx))
	})
	return nil
}

func (n *Node) startStore(context.Context) error {
	store, rec, err := blockdb.Open(blockdb.Options{Dir: filepath.Join(n.cfg.StateDir, "blocks"), BootID: n.inc.BootID(), Logger: n.log})
	if err != nil {
		return err
	}
	n.store = store
	n.later(func() { n.logged("block store", store.Close()) })
	if rec.Reason != "" || rec.OpenLeases > 0 {
		n.log.Warn("block store recovered", "reason", rec.Reason, "set_aside", rec.SetAside, "open_leases", rec.OpenLeases,
			"torn_blocks", rec.TornBlocks, "committed_blocks", rec.Committed)
	}
	return nil
}

func (n *Node) startRegistry(ctx context.Context) error {
	o := natskv.Options{URL: n.cfg.NATS, Name: n.cfg.Node, Heartbeat: n.cfg.Heartbeat, Access: n.cfg.Registry, Replicas: n.cfg.RegistryReplicas, Logger: n.log}
	if n.cfg.NATS == "" {
		srv, err := embedded.Start(embedded.Options{StoreDir: filepath.Join(n.cfg.StateDir, "nats"), Listen: n.cfg.NATSListen, Access: n.cfg.Registry, ServerName: n.cfg.Node, Logger: n.log})
		if err != nil {
			return err
		}
		n.nats, o.Dial = srv, srv.Connect
		n.info.NATSURL = srv.ClientURL()
		n.later(func() {
			ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
			defer cancel()
			n.logged("registry server", srv.Shutdown(ctx))
		})
	}
	dir, err := natskv.Connect(ctx, o)
	if err != nil {
		fe := fault.From("start", err)
		if fe.Code != fault.RegistryUnavailable { // it names the setting
			return fe
		}
		return &fault.Error{Code: fe.Code, Op: "start", Field: "nats", Detail: "the registry could not be reached", Err: err}
	}
	n.dir, n.ages = dir, dir.Ages
	n.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		n.logged("registry", dir.Close(ctx))
	})
	return nil
}

func (n *Node) startEngine(context.Context) error {
	clock := xfer.NewClock()
	lanes, err := n.startProviders(clock)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", n.cfg.Listen)
	if err != nil {
		return &fault.Error{Code: fault.ConfigInvalid, Op: "start", Field: "listen", Detail: "allowed is a free address of this host", Err: err}
	}
	n.later(func() { _ = listener.Close() })
	if n.info.PeerAddr, err = advertised(n.cfg.Advertise, listener.Addr()); err != nil {
		return err
	}
	if ap, ok := listener.Addr().(*net.TCPAddr); ok && !ap.IP.IsLoopback() && n.tls == nil {
		n.log.Warn("peer connections are neither encrypted nor authenticated: use a network you trust", "listen", listener.Addr().String())
	}
	dir := newDirectory(n.dir, n.log)
	ctx, stop := context.WithCancel(context.Background())
	n.later(stop)
	n.wg.Go(func() { dir.run(ctx) })
	n.engine = xfer.New(xfer.Options{
		Node: n.cfg.Node, Epoch: n.inc.Epoch(), BootID: n.inc.BootID(), Addr: n.info.PeerAddr, Clock: clock,
		Providers: n.providers, Store: n.store, Directory: dir, Finder: dir, Scratch: scratch, Locate: dir.locate, Meter: n.met.Meter(), Logger: n.log, NUMANode: numa.Of,
		Tracer: n.tel.Tracer(), TenantTracer: n.tel.TenantTracer, Later: n.tel.Later, Traces: traces{n},
		Limits: limits(n.cfg),
	})
	n.later(n.engine.Close)
	n.links, err = peerlink.New(peerlink.Options{
		Node: n.cfg.Node, Epoch: n.inc.Epoch(), Tenant: n.cfg.Tenant, Software: "kvxfer " + version.Version,
		Providers: n.providers, Absent: n.absent, Lanes: lanes, Handler: n.engine, Resolve: dir.resolve, TLS: n.tls, Logger: n.log,
	})
	if err != nil {
		return err
	}
	n.engine.SetDialer(n.links)
	n.later(func() {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		n.logged("links", n.links.Close(ctx))
	})
	n.wg.Go(func() {
		if err := n.links.Serve(context.Background(), listener); err != nil && !errors.Is(err, net.ErrClosed) {
			n.fail(err)
		}
	})
	return nil
}

func tenants(cfg config.Config) map[string][]int {
	m := map[string][]int{}
	for _, t := range cfg.AllowTenants {
		m[t.Name] = t.UIDs
	}
	return m
}

func limits(cfg config.Config) xfer.Limits {
	l := xfer.DefaultLimits
	l.Clients, l.Regions, l.Leases, l.Transfers = cfg.MaxClients, cfg.MaxRegions, cfg.MaxLeases, cfg.MaxTransfers
	return l
}

// advertised is the address for tickets: what was asked for, with the port that the kernel chose where none was given.
func advertised(want string, bound net.Addr) (string, error) {
	if want == "" {
		return bound.String(), nil
	}
	host, port, err := net.SplitHostPort(want)
	if err != nil {
		return "", &fault.Error{Code: fault.ConfigInvalid, Op: "start", Field: "advertise", Err: err}
	}
	if port == "0" || port == "" {
		_, port, _ = net.SplitHostPort(bound.String())
	}
	return net.JoinHostPort(host, port), nil
}

// announce claims the name. From here on the node may be found.
func (n *Node) announce(ctx context.Context) error {
	err := n.dir.Announce(ctx, registry.Node{
		Name: n.cfg.Node, Epoch: n.inc.Epoch(), PeerAddr: n.info.PeerAddr, HTTPAddr: n.info.HTTPAddr, Version: version.Version,
		Protocol: registry.Protocol{Min: wire.MinVersion, Max: wire.MaxVersion}, Providers: n.providerNames(),
		MemoryKinds: []string{rdma.MemoryHost.String(), rdma.MemoryProcess.String()}, StartedUnixMs: time.Now().UnixMilli(), NUMANodes: numa.Nodes(),
	}, registry.TakeOver{OldEpoch: n.inc.PreviousEpoch()})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	n.later(stop)
	n.wg.Go(func() {
		select {
		case err := <-n.dir.Err():
			n.fail(err)
		case <-ctx.Done():
		}
	})
	forget := time.AfterFunc(returnTime, func() {
		if caches, err := n.store.DropDetached(); caches > 0 || err != nil {
			n.log.Info("caches of clients that did not return are forgotten", "caches", caches, "error", err)
		}
	})
	n.later(func() { forget.Stop() })
	return nil
}

func (n *Node) startLocal(context.Context) (err error) {
	n.local, err = localapi.Serve(context.Background(), localapi.Options{
		Path: n.cfg.Socket, Engine: n.engine, Node: n.cfg.Node, Epoch: n.inc.Epoch(), BootID: n.inc.BootID(), Software: "kvxfer " + version.Version,
		Tenant: n.cfg.Tenant, AllowTenants: tenants(n.cfg), AllowUIDs: n.cfg.AllowUIDs, MaxClients: n.cfg.MaxClients, Spans: n.clientSpan, Status: n.status, Failed: n.engine.RequestFailed, Report: n.report, Logger: n.log,
		Operator: operator{n},
	})
	if err != nil {
		return err
	}
	n.later(func() { // at the end nothing runs any more, so clients have nothing to wait for: they are told and let go
		now, cut := context.WithCancel(context.Background())
		cut()
		n.logged("clients", n.local.Close(now))
	})
	return nil
}

func (n *Node) startHTTP(context.Context) error {
	if n.cfg.HTTP == "" {
		return nil
	}
	listener, err := net.Listen("tcp", n.cfg.HTTP)
	if err != nil {
		return &fault.Error{Code: fault.ConfigInvalid, Op: "start", Field: "http", Detail: "allowed is a free address of this host, or off", Err: err}
	}
	n.info.HTTPAddr = listener.Addr().String()
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.later(func() { stop(); <-done })
	n.wg.Go(func() {
		defer close(done)
		if err := health.Serve(ctx, health.Options{Listener: listener, Ready: n.readiness, Status: func() any { return n.status() }, Metrics: n.met.Page, Profiles: n.cfg.Pprof, Logger: n.log}); err != nil {
			n.fail(err)
		}
	})
	return nil
}

func (n *Node) clientSpan(s wire.ClientSpan, c xfer.ClientInfo) error {
	for k, v := range s.Attributes { // JSON has one kind of number; a whole one was an integer
		if f, ok := v.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
			s.Attributes[k] = int64(f)
		}
	}
	events := make([]telemetry.ClientEvent, len(s.Events))
	for i, e := range s.Events {
		events[i] = telemetry.ClientEvent{Name: e.Name, UnixNano: e.Nanos}
	}
	return n.tel.RecordClientSpan(telemetry.ClientSpan{
		TraceID: s.TraceID, SpanID: s.SpanID, ParentSpanID: s.ParentID, Name: s.Name, StartUnixNano: s.StartNanos, EndUnixNano: s.EndNanos,
		Service: c.Process, PID: c.Pid, Tenant: c.Tenant, StatusError: s.Error, Attributes: telemetry.Attributes(s.Attributes), Events: events,
	})
}

func (n *Node) status() wire.Status {
	st := n.engine.Stats()
	out := wire.Status{Node: n.cfg.Node, Epoch: n.inc.Epoch(), Version: version.Version, PeerAddr: n.info.PeerAddr, HTTPAddr: n.info.HTTPAddr,
		Providers: n.providerNames(), Draining: n.engine.Draining(), Registry: n.dir.View().Connected(), Nodes: []string{},
		Clients: st.Clients, Leases: st.Leases, Transfers: st.Transfers, Absent: n.absent, Unregistered: n.engine.Unregistered()}
	for _, x := range n.dir.View().Nodes() {
		out.Nodes = append(out.Nodes, x.Name)
	}
	return out
}

// fail reports the first reason for which the node must end.
func (n *Node) fail(err error) {
	n.setReady(err)
	select {
	case n.failed <- err:
	default:
	}
}

func (n *Node) logged(part string, err error) {
	switch {
	case err == nil:
	case errors.Is(err, fault.ErrRegistryUnavailable): // what is left there expires by itself
		n.log.Warn("the registry is away", "part", part, "error", err)
	default:
		n.log.Error("closing failed", "part", part, "error", err)
	}
}

// Drain stops granting, waits for running transfers up to the drain time or ctx, and ends the rest with their fences. Clients
// stay attached and may give their memory back. A second call waits for nothing.
func (n *Node) Drain(ctx context.Context) {
	n.drained.Do(func() {
		n.log.Info("draining", "limit", n.cfg.DrainTimeout.String())
		n.stopGranting(ctx)
		n.setReady(fault.New(fault.Draining, "ready", "the node is shutting down"))
		drain, cancel := context.WithTimeout(ctx, n.cfg.DrainTimeout)
		n.engine.Drain(drain)
		cancel()
		n.exportLast(ctx)
	})
}

// Close ends the node: it drains, if Drain has not, and closes everything. A second call waits for nothing.
func (n *Node) Close(ctx context.Context) {
	n.once.Do(func() {
		n.Drain(ctx)
		n.unwind()
		n.log.Info("ended")
	})
}
