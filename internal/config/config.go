package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

// op is what the errors of this package say was being done.
const op = "configuration"

// Config is a checked configuration. Addresses are resolved: IP:PORT, with a zone where the IP is link-local.
type Config struct {
	Node     string // 1..64 of [A-Za-z0-9_.-], the first a letter or digit
	StateDir string // absolute path
	Socket   string // absolute path, at most 107 bytes

	Listen string // peer port; port 0: the kernel chooses
	// Advertise is what peers dial: IP:PORT or NAME:PORT, never an unspecified IP. Port 0 stands for the one that the
	// kernel chose for Listen.
	Advertise string
	HTTP      string // "" for none
	Pprof     bool   // profiles below /debug/pprof/ on the HTTP port

	NATS       string // URLs separated by commas, which may hold passwords; "" for the embedded server
	NATSListen string // the embedded server's address; "" for in-process only

	// Registry is how this node and the registry's server know each other: the embedded one's listener, or another's as its client.
	Registry natsaccess.Files
	// RegistryReplicas is how many servers of a cluster keep the registry's bucket.
	RegistryReplicas int
	InsecureNATS     bool // the embedded server may be reached from beyond the host without credentials

	TLSCert, TLSKey, TLSCA string // absolute paths; all three or none
	TLSLanes               bool   // payload travels over TLS too
	InsecurePeers          bool   // peers may reach this node from beyond the host without TLS

	Tenant       string          // of clients that name none
	AllowTenants []AllowedTenant // others that clients may name
	AllowUIDs    []int           // users besides the daemon's own and root; without repetitions
	Lanes        int
	MaxClients   int

	MaxRegions, MaxLeases, MaxTransfers int // per client

	DrainTimeout time.Duration
	Heartbeat    time.Duration

	TraceFile string // absolute path; "" for none
	TraceKeep int    // finished spans kept in memory; -1: the default number where traces go to a collector or a file, else none
	LogLevel  string // debug, info, warn or error
	LogFormat string // text or json

	Providers []string // best first, at least one, without repetitions
	// ProvidersNamed: the list was set, so what is in it is wanted, and one that cannot be used ends the start.
	ProvidersNamed bool
	RDMA           RDMA // of the provider verbs

	NoEnvironment bool // made by New: the OTEL_* variables do not count either
}

// AllowedTenant is a tenant that clients of some users may name.
type AllowedTenant struct {
	Name string
	UIDs []int // who may; nil: every user who may attach
}

// TLS says whether the node speaks TLS with its peers.
func (c *Config) TLS() bool { return c.TLSCert != "" }

// LogValue is the configuration without what may hold passwords.
func (c *Config) LogValue() slog.Value {
	nats := "embedded"
	if c.NATS != "" {
		nats = "external"
	}
	return slog.GroupValue(
		slog.String("node", c.Node), slog.String("state_dir", c.StateDir), slog.String("socket", c.Socket),
		slog.String("listen", c.Listen), slog.String("advertise", c.Advertise), slog.String("http", c.HTTP), slog.Bool("pprof", c.Pprof),
		slog.String("nats", nats), slog.String("nats_listen", c.NATSListen),
		slog.Any("registry", c.Registry), slog.Int("registry_replicas", c.RegistryReplicas), slog.Bool("insecure_nats", c.InsecureNATS),
		slog.String("tls_cert", c.TLSCert), slog.String("tls_key", c.TLSKey), slog.String("tls_ca", c.TLSCA),
		slog.Bool("tls_lanes", c.TLSLanes), slog.Bool("insecure_peers", c.InsecurePeers), slog.String("tenant", c.Tenant),
		slog.Any("allow_tenants", c.AllowTenants), slog.Any("allow_uid", c.AllowUIDs), slog.Int("lanes", c.Lanes), slog.Int("max_clients", c.MaxClients),
		slog.Int("max_regions", c.MaxRegions), slog.Int("max_leases", c.MaxLeases), slog.Int("max_transfers", c.MaxTransfers),
		slog.Duration("drain_timeout", c.DrainTimeout), slog.Duration("heartbeat", c.Heartbeat),
		slog.String("trace_file", c.TraceFile), slog.Int("trace_keep", c.TraceKeep), slog.String("log_level", c.LogLevel),
		slog.String("log_format", c.LogFormat), slog.Any("providers", c.Providers),
		slog.Bool("providers_named", c.ProvidersNamed), slog.Any("rdma", c.RDMA), slog.Bool("no_environment", c.NoEnvironment))
}

// Load reads the configuration from the arguments behind `kvxfer serve`, the environment ("NAME=value", the last of a
// name counts) and the file that one of them names. Every error is a ConfigInvalid that names the setting, where it was
// set and what is allowed; they come joined (errors.Join). flag.ErrHelp comes back as it is where --help was asked for.
func Load(args []string, environ []string) (*Config, error) {
	return load(args, environ, thisHost())
}

// value is one setting's text and its source.
type value struct {
	text   string
	source string
}

// values are settings by name.
type values map[string]value

// loader is one Load: what is known of the host and the configuration as far as it is made.
type loader struct {
	host host
	env  map[string]string
	c    Config

	// Addresses are kept in parts until finish, because one may complete or exclude another.
	listen, advertise, http, natsListen address

	errs []error
	bad  map[string]bool // settings without a usable value
}

func load(args, environ []string, h host) (*Config, error) {
	l := &loader{host: h, env: map[string]string{}, bad: map[string]bool{}}
	for _, kv := range environ {
		if name, text, ok := strings.Cut(kv, "="); ok {
			l.env[name] = text
		}
	}
	flags, err := l.fromFlags(args)
	if err != nil {
		return nil, err
	}
	env := l.fromEnv()
	file, fileRead := l.fromFile(first(configKey, flags, env))

	return l.resolve(fileRead, flags, env, file)
}

// resolve makes the configuration of the sources, the first of which counts most.
func (l *loader) resolve(complete bool, sources ...values) (*Config, error) {
	effective := values{}
	for i := range settings {
		s := &settings[i]
		v, set := first(s.name, sources...)
		if !set {
			var ok bool
			if v, ok = l.defaultOf(s); !ok {
				continue
			}
		}
		l.c.ProvidersNamed = l.c.ProvidersNamed || set && s.name == "providers"
		effective[s.name] = v
		if err := s.set(l, v.text); err != nil {
			l.wrong(s, v, err)
		}
	}
	// What contradicts what is not known while the file might say more.
	if complete {
		l.finish(effective)
	}
	if len(l.errs) > 0 {
		return nil, errors.Join(l.errs...)
	}
	return &l.c, nil
}

// first looks for a setting in one source after the other.
func first(name string, in ...values) (value, bool) {
	for _, vs := range in {
		if v, ok := vs[name]; ok {
			return v, true
		}
	}
	return value{}, false
}

// defaultOf is the setting's default; where it has none on this host, an error that says why is noted.
func (l *loader) defaultOf(s *setting) (value, bool) {
	if s.byHost == nil {
		return value{s.def, "the default"}, true
	}
	text, err := s.byHost(l)
	if err != nil {
		l.fail(s.name, "not set, and there is no default: %s; allowed: %s", err, s.allowed)
		return value{}, false
	}
	return value{text, "the default"}, true
}

// fail notes an error about a setting.
func (l *loader) fail(field, format string, args ...any) {
	l.bad[field] = true
	l.errs = append(l.errs, &fault.Error{Code: fault.ConfigInvalid, Op: op, Field: field, Detail: fmt.Sprintf(format, args...)})
}

// wrong notes that a setting's value is not allowed. A reason without words adds none.
func (l *loader) wrong(s *setting, v value, reason error) {
	shown := fmt.Sprintf("%.120q ", v.text)
	why := ""
	if reason.Error() != "" {
		why = ": " + reason.Error()
	}
	if s.secret {
		shown, why = "the value ", ""
	}
	l.fail(s.name, "%sfrom %s is not allowed%s; allowed: %s", shown, v.source, why, s.allowed)
}

// finish checks what concerns several settings and writes the addresses down.
func (l *loader) finish(effective values) {
	ok := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { return l.bad[n] })
	}
	l.c.Listen, l.c.HTTP, l.c.NATSListen = l.listen.String(), l.http.String(), l.natsListen.String()
	if ok("listen", "advertise") {
		l.finishAdvertise(effective)
	}
	if ok("nats", "nats-listen") && l.c.NATS != "" && l.c.NATSListen != "" {
		l.fail("nats-listen", "%q from %s is not allowed together with nats from %s: the embedded server runs only without an external one; allowed: one of the two",
			effective["nats-listen"].text, effective["nats-listen"].source, effective["nats"].source)
	}
	if ok("listen", "tls-cert", "tls-key", "tls-ca", "tls-lanes", "insecure-peers") {
		l.finishTLS(effective)
	}
	l.finishRegistry(effective, ok)
	for _, t := range l.c.AllowTenants {
		if ok("tenant", "allow-tenants") && t.Name == l.c.Tenant {
			l.fail("allow-tenants", "%q from %s is this node's own tenant, which every client may use; allowed: other tenants", t.Name, effective["allow-tenants"].source)
		}
	}
	if l.c.Pprof && ok("pprof", "http") && (l.c.HTTP == "" || !l.http.ip.IsLoopback()) {
		l.fail("pprof", "true from %s is not allowed with http %q from %s: profiles show what this process does; allowed: an http address on loop-back",
			effective["pprof"].source, effective["http"].text, effective["http"].source)
	}
	ports := []struct {
		name string
		a    address
	}{{"listen", l.listen}, {"http", l.http}, {"nats-listen", l.natsListen}}
	for i, p := range ports {
		for _, q := range ports[:i] {
			if ok(p.name, q.name) && p.a.overlaps(q.a) {
				l.fail(p.name, "%s from %s is not allowed: %s from %s takes that port; allowed: another port, or 0 to let the kernel choose",
					p.a, effective[p.name].source, q.name, effective[q.name].source)
			}
		}
	}
}

// finishTLS wants either nothing or everything that TLS needs, and one of TLS and a word where others than this host's processes may
// connect. What counts is where the node listens: one that listens on loop-back and advertises another address stands behind
// something that passes connections on, and that is what its peers reach.
func (l *loader) finishTLS(effective values) {
	files := []struct{ name, path string }{{"tls-cert", l.c.TLSCert}, {"tls-key", l.c.TLSKey}, {"tls-ca", l.c.TLSCA}}
	missing := slices.IndexFunc(files, func(f struct{ name, path string }) bool { return f.path == "" })
	some := slices.IndexFunc(files, func(f struct{ name, path string }) bool { return f.path != "" })
	switch {
	case some >= 0 && missing >= 0:
		l.fail(files[missing].name, "not set, but %s is from %s; allowed: tls-cert, tls-key and tls-ca together, or none of them", files[some].name, effective[files[some].name].source)
	case l.c.TLSLanes && some < 0:
		l.fail("tls-lanes", "true from %s is not allowed without certificates; allowed: together with tls-cert, tls-key and tls-ca", effective["tls-lanes"].source)
	case l.c.InsecurePeers && some >= 0:
		l.fail("insecure-peers", "true from %s is not allowed together with %s from %s: with certificates nobody is spoken to without; allowed: one of the two",
			effective["insecure-peers"].source, files[some].name, effective[files[some].name].source)
	case !l.listen.ip.IsLoopback() && some < 0 && !l.c.InsecurePeers:
		l.fail("listen", "%q from %s is reached from beyond this host, and peers would be neither encrypted nor authenticated; allowed: a loop-back address, any address with tls-cert, tls-key and tls-ca, or any with insecure-peers where the network is trusted",
			effective["listen"].text, effective["listen"].source)
	}
}

func (l *loader) finishAdvertise(effective values) {
	a := l.advertise
	if !a.set() {
		if l.listen.unspecified() {
			l.fail("advertise", "not set, but listen is %q from %s, which no peer can dial; set it by --advertise, %s or the file's key; allowed: %s",
				effective["listen"].text, effective["listen"].source, envName("advertise"), byName("advertise").allowed)
			return
		}
		a = l.listen
	}
	if a.port == noPort {
		a.port = l.listen.port
	}
	l.c.Advertise = a.String()
}

// host is what Load asks of the machine.
type host struct {
	uid      int
	hostname func() (string, error)
	getwd    func() (string, error)
	readFile func(path string, limit int64) ([]byte, error)
	network  network
}

func thisHost() host {
	return host{uid: os.Geteuid(), hostname: os.Hostname, getwd: os.Getwd, readFile: readFile, network: thisNetwork()}
}
