package config

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kvxfer/kvxfer/internal/socketpath"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/registry"
)

const (
	peerPort = 7420
	httpPort = 7421
	natsPort = 4222 // NATS's own

	maxTraceKeep = 1 << 20

	maxSocket = 107       // sun_path has 108 bytes, the last is zero
	maxUID    = 1<<32 - 2 // the value above means "no user" to the kernel
)

// Providers names what --providers may list, best first: shm reaches daemons of the same host, verbs those with an RDMA device
// in the same fabric, tcp all.
var Providers = []string{"shm", "verbs", "tcp"}

// setting is one row of the table that flags, environment, file and usage are made from.
type setting struct {
	name    string
	arg     string // what stands for the value in the usage
	def     string
	byHost  func(l *loader) (string, error) // the default where the host decides; nil: def
	defText string                          // the default in words where it is not def
	meaning string
	allowed string
	kind    kind
	secret  bool // the value is never repeated
	set     func(l *loader, v string) error
}

// errRange is a value outside of what the setting's row says is allowed; it adds no words to that.
var errRange = errors.New("")

var settings []setting

// It is filled at the start because its rows use functions that look into it.
func init() {
	settings = []setting{
		{name: "node", arg: "NAME", byHost: hostName, defText: "the host name", meaning: "this node's name, unique in the registry",
			allowed: "1 to 64 of [A-Za-z0-9_.-], the first a letter or digit",
			set: func(l *loader, v string) error {
				l.c.Node = v
				return errIf(registry.ValidateName("node", v) != nil)
			}},
		{name: "state-dir", arg: "DIR", byHost: stateDir, defText: "/var/lib/kvxfer for root, else $XDG_STATE_HOME/kvxfer or ~/.local/state/kvxfer",
			meaning: "metadata of blocks and the journal, one daemon a directory", allowed: "a path on a local file system",
			set: func(l *loader, v string) (err error) {
				l.c.StateDir, err = l.path(v)
				return err
			}},
		{name: "socket", arg: "PATH", byHost: socket, defText: "/run/kvxfer/kvxfer.sock for root, else $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock or /tmp/kvxfer-UID/kvxfer.sock",
			meaning: "Unix socket for clients", allowed: fmt.Sprintf("a path of at most %d bytes", maxSocket),
			set: func(l *loader, v string) (err error) {
				if l.c.Socket, err = l.path(v); err == nil && len(l.c.Socket) > maxSocket {
					return fmt.Errorf("%d bytes", len(l.c.Socket))
				}
				return err
			}},
		{name: "listen", arg: "ADDR", def: "127.0.0.1:" + strconv.Itoa(peerPort), meaning: "port for peers",
			allowed: listenAllowed(peerPort), set: func(l *loader, v string) (err error) {
				l.listen, err = l.host.network.listenAddress(v, peerPort)
				return err
			}},
		{name: "advertise", arg: "ADDR", defText: "the listen address", meaning: "what peers dial; needed where listen is 0.0.0.0 or [::]",
			allowed: "an interface of this host, an IP that peers can dial or a host name, each with a port of 1 to 65535 or without (the one of listen); IPv6 with a port as [IP]:PORT",
			set: func(l *loader, v string) (err error) {
				if v != "" {
					l.advertise, err = l.host.network.dialAddress(v)
				}
				return err
			}},
		{name: "http", arg: "ADDR", def: "127.0.0.1:" + strconv.Itoa(httpPort), meaning: "port for /healthz, /readyz, /status and /metrics; off for none",
			allowed: "off, " + listenAllowed(httpPort), set: func(l *loader, v string) (err error) {
				if v != "off" {
					l.http, err = l.host.network.listenAddress(v, httpPort)
				}
				return err
			}},
		toggle("pprof", "serve profiles of this process below /debug/pprof/ on the HTTP port, which must be on loop-back", func(c *Config) *bool { return &c.Pprof }),
		{name: "nats", arg: "URLS", defText: "an embedded server", meaning: "the registry's NATS server; URLs with a password belong in the environment or the file, where other users do not see them",
			allowed: "nats://HOST:PORT or tls://HOST:PORT, several separated by commas, or nothing for an embedded server", kind: listKind, secret: true,
			set: func(l *loader, v string) (err error) {
				l.c.NATS, err = natsURLs(v)
				return err
			}},
		{name: "nats-listen", arg: "ADDR", defText: "in-process only", meaning: "port of the embedded NATS server, for other nodes; not together with nats",
			allowed: listenAllowed(natsPort) + ", or nothing", set: func(l *loader, v string) (err error) {
				if v != "" {
					l.natsListen, err = l.host.network.listenAddress(v, natsPort)
				}
				return err
			}},
		pem("tls-cert", "this node's certificate, PEM, followed by what leads to an authority; needs tls-key and tls-ca", func(c *Config) *string { return &c.TLSCert }),
		pem("tls-key", "the certificate's private key, PEM", func(c *Config) *string { return &c.TLSKey }),
		pem("tls-ca", "the authorities that sign peers' certificates, PEM", func(c *Config) *string { return &c.TLSCA }),
		toggle("tls-lanes", "payload travels over TLS too, which costs copies; needs tls-cert", func(c *Config) *bool { return &c.TLSLanes }),
		toggle("insecure-peers", "listen for peers and for the registry beyond loop-back without TLS and credentials: on a network that you trust", func(c *Config) *bool { return &c.InsecurePeers }),
		{name: "tenant", arg: "NAME", def: "default", meaning: "clients' tenant where they name none; nothing passes from one tenant to another",
			allowed: "1 to 64 of [A-Za-z0-9_.-]", set: func(l *loader, v string) error {
				l.c.Tenant = v
				return errIf(wire.CheckName(op, "tenant", v) != nil)
			}},
		{name: "allow-tenants", arg: "TENANTS", defText: "none", meaning: "tenants that clients may name besides this node's own, each for all users or for some",
			allowed: fmt.Sprintf("NAME or NAME:UID+UID, several separated by commas, each name once, with user numbers of 0 to %d, or nothing", maxUID), kind: listKind,
			set: func(l *loader, v string) (err error) {
				l.c.AllowTenants, err = tenants(v)
				return err
			}},
		{name: "allow-uid", arg: "UIDS", defText: "none", meaning: "users that may attach besides root and the daemon's own",
			allowed: fmt.Sprintf("user numbers of 0 to %d separated by commas, or nothing", maxUID), kind: listKind,
			set: func(l *loader, v string) error {
				for _, s := range list(v) {
					uid, err := userNumber(s)
					if err != nil {
						return err
					}
					if !slices.Contains(l.c.AllowUIDs, uid) {
						l.c.AllowUIDs = append(l.c.AllowUIDs, uid)
					}
				}
				return nil
			}},
		number("lanes", 4, 1, 64, "TCP connections a session", func(c *Config) *int { return &c.Lanes }),
		number("max-clients", 256, 1, 65536, "clients attached at a time", func(c *Config) *int { return &c.MaxClients }),
		number("max-regions", 64, 1, 4096, "regions a client", func(c *Config) *int { return &c.MaxRegions }),
		number("max-leases", 8192, 1, 1<<20, "leases a client that have not ended", func(c *Config) *int { return &c.MaxLeases }),
		number("max-transfers", 8192, 1, 1<<20, "transfers a client that have not ended", func(c *Config) *int { return &c.MaxTransfers }),
		duration("drain-timeout", 10*time.Second, 0, time.Hour, "how long a shutdown waits for transfers", func(c *Config) *time.Duration { return &c.DrainTimeout }),
		duration("heartbeat", 2*time.Second, 50*time.Millisecond, 10*time.Minute, "time between two signs of life", func(c *Config) *time.Duration { return &c.Heartbeat }),
		{name: "trace-file", arg: "PATH", defText: "none", meaning: "file that traces are appended to, as OTLP JSON lines", allowed: "a path, or nothing",
			set: func(l *loader, v string) (err error) {
				if v != "" {
					l.c.TraceFile, err = l.path(v)
				}
				return err
			}},
		{name: "trace-keep", arg: "N", defText: "8192 where traces go to a collector or a file, else none", meaning: "finished spans kept in memory for kvxfer trace, about 1 KiB each; turns tracing on",
			allowed: fmt.Sprintf("0 to %d, or nothing", maxTraceKeep), kind: numberKind, set: func(l *loader, v string) (err error) {
				if l.c.TraceKeep = -1; v != "" {
					l.c.TraceKeep, err = strconv.Atoi(v)
				}
				return errIf(err != nil || v != "" && (l.c.TraceKeep < 0 || l.c.TraceKeep > maxTraceKeep))
			}},
		choice("log-level", "info", "least level that is logged; kvxfer log-level changes it at run time", func(c *Config) *string { return &c.LogLevel }, "debug", "info", "warn", "error"),
		choice("log-format", "text", "how log lines are written", func(c *Config) *string { return &c.LogFormat }, "text", "json"),
		{name: "providers", arg: "NAMES", def: strings.Join(Providers, ","), meaning: "ways that blocks may take to and from peers, best first; verbs (RDMA) is left out where this host cannot use it, unless it is named here",
			allowed: strings.Join(Providers, ", ") + "; several separated by commas, each once", kind: listKind,
			set: func(l *loader, v string) error {
				l.c.Providers = list(v)
				bad := len(l.c.Providers) == 0
				for i, p := range l.c.Providers {
					bad = bad || !slices.Contains(Providers, p) || slices.Contains(l.c.Providers[:i], p)
				}
				return errIf(bad)
			}},
	}
	at := slices.IndexFunc(settings, func(s setting) bool { return s.name == "nats-listen" }) + 1
	settings = slices.Insert(settings, at, registrySettings()...)
	settings = append(settings, rdmaSettings()...)
}

func listenAllowed(port int) string {
	return fmt.Sprintf("an IP of this host, an interface of this host or a host name of it, each with a port of 0 to 65535 or without (%d); IPv6 with a port as [IP]:PORT", port)
}

func number(name string, def, least, most int, meaning string, in func(*Config) *int) setting {
	return setting{name: name, arg: "N", def: strconv.Itoa(def), meaning: meaning, allowed: fmt.Sprintf("%d to %d", least, most), kind: numberKind,
		set: func(l *loader, v string) error {
			n, err := strconv.Atoi(v)
			*in(&l.c) = n
			return errIf(err != nil || n < least || n > most)
		}}
}

func duration(name string, def, least, most time.Duration, meaning string, in func(*Config) *time.Duration) setting {
	return setting{name: name, arg: "TIME", def: short(def), meaning: meaning, allowed: fmt.Sprintf("%s to %s, written as 500ms, 2s or 1m30s", short(least), short(most)),
		set: func(l *loader, v string) error {
			d, err := time.ParseDuration(v)
			*in(&l.c) = d
			return errIf(err != nil || d < least || d > most)
		}}
}

func choice(name, def, meaning string, in func(*Config) *string, allowed ...string) setting {
	return setting{name: name, arg: "WORD", def: def, meaning: meaning, allowed: strings.Join(allowed, ", "),
		set: func(l *loader, v string) error {
			*in(&l.c) = v
			return errIf(!slices.Contains(allowed, v))
		}}
}

// toggle is a setting whose flag alone means true.
func toggle(name, meaning string, in func(*Config) *bool) setting {
	return setting{name: name, arg: "[BOOL]", def: "false", meaning: meaning, allowed: "true or false; the flag alone means true", kind: boolKind,
		set: func(l *loader, v string) error {
			*in(&l.c) = v == "true"
			return errIf(v != "true" && v != "false")
		}}
}

// pem is the path of a file that the node reads itself, and again when it changes.
func pem(name, meaning string, in func(*Config) *string) setting {
	return setting{name: name, arg: "PATH", defText: "none", meaning: meaning, allowed: "a path, or nothing",
		set: func(l *loader, v string) (err error) {
			if v != "" {
				*in(&l.c), err = l.path(v)
			}
			return err
		}}
}

func userNumber(s string) (int, error) {
	uid, err := strconv.ParseUint(s, 10, 32)
	return int(uid), errIf(err != nil || uid > maxUID)
}

// tenants reads NAME and NAME:UID+UID, separated by commas.
func tenants(v string) ([]AllowedTenant, error) {
	var out []AllowedTenant
	for _, s := range list(v) {
		name, uids, bound := strings.Cut(s, ":")
		if wire.CheckName(op, "allow-tenants", name) != nil || slices.ContainsFunc(out, func(t AllowedTenant) bool { return t.Name == name }) {
			return nil, errRange
		}
		t := AllowedTenant{Name: name}
		for _, s := range strings.Split(uids, "+") {
			if !bound {
				break
			}
			uid, err := userNumber(s)
			if err != nil {
				return nil, err
			}
			t.UIDs = append(t.UIDs, uid)
		}
		out = append(out, t)
	}
	return out, nil
}

// short writes 10m0s as 10m and 1h0m0s as 1h.
func short(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func errIf(bad bool) error {
	if bad {
		return errRange
	}
	return nil
}

// byName returns the setting's row, nil where there is none.
func byName(name string) *setting {
	for i := range settings {
		if settings[i].name == name {
			return &settings[i]
		}
	}
	return nil
}

// names are those of all settings in the table's order.
func names() []string {
	out := make([]string, len(settings))
	for i := range settings {
		out[i] = settings[i].name
	}
	return out
}

// allowedFor says what is allowed for a setting or for configKey.
func allowedFor(name string) string {
	if s := byName(name); s != nil {
		return s.allowed
	}
	return fmt.Sprintf("the path of a readable regular file of at most %d bytes, or nothing", maxFile)
}

// list splits at commas; nothing gives no element.
func list(v string) []string {
	if strings.TrimSpace(v) == "" {
		return nil
	}
	out := strings.Split(v, ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return out
}

// natsURLs checks the registry's URLs. The URL parser's errors repeat the URL, so they are dropped.
func natsURLs(v string) (string, error) {
	urls := list(v)
	for _, one := range urls {
		u, err := url.Parse(one)
		if err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return "", errRange
		}
	}
	return strings.Join(urls, ","), nil
}

// path makes a path absolute.
func (l *loader) path(v string) (string, error) {
	switch {
	case v == "":
		return "", errors.New("it is empty")
	case strings.ContainsRune(v, 0):
		return "", errors.New("it contains a zero byte")
	case filepath.IsAbs(v):
		return filepath.Clean(v), nil
	}
	dir, err := l.host.getwd()
	if err != nil {
		return "", fmt.Errorf("it is relative, and the working directory is not known: %w", err)
	}
	return filepath.Join(dir, v), nil
}

// hostName is the host's name without what a node's name cannot have.
func hostName(l *loader) (string, error) {
	name, err := l.host.hostname()
	if err != nil {
		return "", err
	}
	cut := strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || strings.ContainsRune("_.-", r) {
			return r
		}
		return -1
	}, name)
	cut = strings.TrimLeft(cut, "_.-")
	if cut == "" {
		return "", fmt.Errorf("the host name %.80q has no letter or digit", name)
	}
	return cut[:min(len(cut), registry.MaxNameLen)], nil
}

// stateDir follows the XDG rules, by which a relative path counts as not set.
func stateDir(l *loader) (string, error) {
	if l.host.uid == 0 {
		return "/var/lib/kvxfer", nil
	}
	if dir := l.env["XDG_STATE_HOME"]; filepath.IsAbs(dir) {
		return filepath.Join(dir, "kvxfer"), nil
	}
	if dir := l.env["HOME"]; filepath.IsAbs(dir) {
		return filepath.Join(dir, ".local/state/kvxfer"), nil
	}
	return "", errors.New("neither XDG_STATE_HOME nor HOME is an absolute path")
}

// socket is where the SDKs look, too.
func socket(l *loader) (string, error) {
	return socketpath.Default(l.host.uid, l.env["XDG_RUNTIME_DIR"]), nil
}
