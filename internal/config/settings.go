package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// Default ports.
const (
	PeerPort = 7420
	HTTPPort = 7421
	NATSPort = 4222
)

// KnownProviders are the fabrics that a node can be told to use.
var KnownProviders = []string{"tcp"}

// maxSocketPath is what the kernel's field for a Unix socket's path holds beside the NUL, in bytes.
const maxSocketPath = len(unix.RawSockaddrUnix{}.Path) - 1

// setting is a row of the table. set's error says what is wrong and what is allowed, without name and source.
type setting struct {
	name  string
	list  bool
	help  string
	shown string // the default, for people
	def   func(Host) (string, error)
	set   func(*Config, Host, value) error
}

func fixed(s string) func(Host) (string, error) { return func(Host) (string, error) { return s, nil } }

var settings = []setting{
	{name: "node", help: "name of this node, 1..64 of [A-Za-z0-9_.-], the first a letter or digit", shown: "the host's name",
		def: func(h Host) (string, error) { return h.Hostname() }, set: setNode},
	{name: "state-dir", help: "directory for block metadata and the journal; the daemon's alone, mode 0700", shown: "/var/lib/kvxfer (root), $XDG_STATE_HOME/kvxfer, ~/.local/state/kvxfer",
		def: defaultStateDir, set: func(c *Config, _ Host, v value) error { return setPath(&c.StateDir, v, false) }},
	{name: "socket", help: "Unix socket for clients", shown: "/run/kvxfer/kvxfer.sock (root), $XDG_RUNTIME_DIR/kvxfer/kvxfer.sock, /tmp/kvxfer-UID/kvxfer.sock",
		def: func(h Host) (string, error) { return DefaultSocket(h), nil }, set: setSocket},
	{name: "listen", help: "address or interface for peers: host[:port], [v6][:port], interface[:port]; port 0: the kernel chooses", shown: hostPort("127.0.0.1", PeerPort),
		def: fixed(hostPort("127.0.0.1", PeerPort)), set: func(c *Config, h Host, v value) error { return setAddress(&c.Listen, h, v, PeerPort) }},
	{name: "advertise", help: "address or interface that peers dial, port as listen unless given", shown: "as listen",
		def: fixed(""), set: setAdvertise},
	{name: "http", help: "address or interface of /healthz and /readyz, or off", shown: hostPort("127.0.0.1", HTTPPort),
		def: fixed(hostPort("127.0.0.1", HTTPPort)), set: setHTTP},
	{name: "nats", list: true, help: "NATS servers of the registry: nats://host:port or tls://host:port", shown: "embedded server",
		def: fixed(""), set: setNATS},
	{name: "nats-listen", help: "address or interface of the embedded NATS server", shown: "in-process only",
		def: fixed(""), set: setNATSListen},
	{name: "tenant", help: "tenant of clients that name none, 1..64 of [A-Za-z0-9_.-]", shown: "default",
		def: fixed("default"), set: func(c *Config, _ Host, v value) error { return setName(&c.Tenant, v) }},
	{name: "allow-uid", list: true, help: "user ids that may use the socket beside root and the daemon's own", shown: "none",
		def: fixed(""), set: setAllowUIDs},
	{name: "lanes", help: "TCP connections to each peer, 1..64", shown: "4",
		def: fixed("4"), set: func(c *Config, _ Host, v value) error { return setInt(&c.Lanes, v, 1, 64) }},
	{name: "max-clients", help: "connections on the socket, 1..65536", shown: "256",
		def: fixed("256"), set: func(c *Config, _ Host, v value) error { return setInt(&c.MaxClients, v, 1, 65536) }},
	{name: "drain-timeout", help: "time for transfers to end when the daemon is stopped, 0s..10m", shown: "10s",
		def: fixed("10s"), set: func(c *Config, _ Host, v value) error {
			return setDuration(&c.DrainTimeout, v, 0, 10*time.Minute)
		}},
	{name: "heartbeat", help: "time between two signs of life in the registry, 50ms..10m", shown: "2s",
		def: fixed("2s"), set: func(c *Config, _ Host, v value) error {
			return setDuration(&c.Heartbeat, v, 50*time.Millisecond, 10*time.Minute)
		}},
	{name: "trace-file", help: "file for traces as OTLP JSON lines", shown: "none",
		def: fixed(""), set: func(c *Config, _ Host, v value) error { return setPath(&c.TraceFile, v, true) }},
	{name: "log-level", help: "debug, info, warn or error", shown: "info",
		def: fixed("info"), set: setLogLevel},
	{name: "log-format", help: "text or json", shown: "text",
		def: fixed("text"), set: setLogFormat},
	{name: "provider", list: true, help: "fabrics, the preferred one first: " + strings.Join(KnownProviders, ", "), shown: "tcp",
		def: fixed("tcp"), set: setProviders},
}

func find(name string) *setting {
	for i := range settings {
		if settings[i].name == name {
			return &settings[i]
		}
	}
	return nil
}

// Names are all settings in the order of the help; the first is config, the file itself.
func Names() []string {
	out := []string{configName}
	for i := range settings {
		out = append(out, settings[i].name)
	}
	return out
}

func defaultStateDir(h Host) (string, error) {
	if h.UID == 0 {
		return "/var/lib/kvxfer", nil
	}
	// The XDG specification wants relative paths ignored.
	if dir, _ := h.LookupEnv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "kvxfer"), nil
	}
	if dir, _ := h.LookupEnv("HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, ".local/state/kvxfer"), nil
	}
	return "", errors.New("neither XDG_STATE_HOME nor HOME is an absolute path")
}

// DefaultSocket is where the daemon listens, and clients look for it, if nobody says otherwise.
func DefaultSocket(h Host) string {
	const tail = "kvxfer/kvxfer.sock"
	if h.UID == 0 {
		return "/run/" + tail
	}
	if dir, _ := h.LookupEnv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return filepath.Join(dir, tail)
	}
	return fmt.Sprintf("/tmp/kvxfer-%d/kvxfer.sock", h.UID)
}

func setName(dst *string, v value) error {
	*dst = v.text()
	if err := wire.CheckName(op, "", *dst); err != nil {
		return errors.New(fault.From("", err).Detail)
	}
	return nil
}

// setNode is stricter than other names: the registry makes a key of it, and a key does not begin with punctuation.
func setNode(c *Config, _ Host, v value) error {
	if err := setName(&c.Node, v); err != nil {
		return err
	}
	if strings.IndexByte("_.-", c.Node[0]) >= 0 {
		return fmt.Errorf("%q, allowed is a letter or digit at the beginning", c.Node)
	}
	return nil
}

func setPath(dst *string, v value, optional bool) error {
	p := v.text()
	if p == "" && optional {
		*dst = ""
		return nil
	}
	if p == "" || strings.IndexByte(p, 0) >= 0 {
		return fmt.Errorf("%q, allowed a path", clip(p))
	}
	abs, err := filepath.Abs(p)
	if err != nil {
		return err
	}
	*dst = abs
	return nil
}

func setSocket(c *Config, _ Host, v value) error {
	if err := setPath(&c.Socket, v, false); err != nil {
		return err
	}
	if len(c.Socket) > maxSocketPath {
		return fmt.Errorf("%q has %d bytes, allowed 1..%d, which is all that a Unix socket takes", clip(c.Socket), len(c.Socket), maxSocketPath)
	}
	return nil
}

func setAddress(dst *string, h Host, v value, port int) error {
	a, err := parseAddress(v.text(), port)
	if err != nil {
		return err
	}
	host, _, err := h.Network.resolve(a.host)
	if err != nil {
		return err
	}
	*dst = hostPort(host, a.port)
	return nil
}

func setAdvertise(c *Config, h Host, v value) error {
	if v.text() == "" {
		c.Advertise = ""
		return nil
	}
	a, err := parseAddress(v.text(), 0)
	if err != nil {
		return err
	}
	host, asked, err := h.Network.resolve(a.host)
	if err != nil {
		return err
	}
	if unspecified(host) {
		return fmt.Errorf("%q is every address of this host, allowed is one that peers can dial", v.text())
	}
	if asked {
		host = a.host // peers ask their own resolver, which may know better
	}
	c.Advertise = hostPort(host, a.port)
	return nil
}

func setHTTP(c *Config, h Host, v value) error {
	if v.text() == "off" {
		c.HTTP = ""
		return nil
	}
	if err := setAddress(&c.HTTP, h, v, HTTPPort); err != nil {
		return fmt.Errorf("%w, or off", err)
	}
	return nil
}

func setNATSListen(c *Config, h Host, v value) error {
	if v.text() == "" {
		c.NATSListen = ""
		return nil
	}
	return setAddress(&c.NATSListen, h, v, NATSPort)
}

// setNATS never repeats a URL, which may hold a password.
func setNATS(c *Config, _ Host, v value) error {
	c.NATS = nil
	for i, one := range list(v) {
		u, err := url.Parse(one)
		if err != nil || u.Hostname() == "" || u.Scheme != "nats" && u.Scheme != "tls" {
			return fmt.Errorf("server %d, allowed nats://host:port or tls://host:port, several separated by commas", i+1)
		}
		if u.User != nil && strings.HasPrefix(v.source, "--") {
			return fmt.Errorf("server %d has a user or password, which everybody on this host can read on a command line; allowed by %s or the file", i+1, EnvName("nats"))
		}
		c.NATS = append(c.NATS, one)
	}
	return nil
}

func setAllowUIDs(c *Config, _ Host, v value) error {
	c.AllowUIDs = nil
	for _, one := range list(v) {
		n, err := strconv.ParseUint(one, 10, 32)
		if err != nil || n == math.MaxUint32 { // which means "no user" to the kernel
			return fmt.Errorf("%q, allowed user ids 0..%d", clip(one), uint32(math.MaxUint32-1))
		}
		c.AllowUIDs = append(c.AllowUIDs, int(n))
	}
	return nil
}

func setInt(dst *int, v value, low, high int) error {
	n, err := strconv.Atoi(v.text())
	if err != nil || n < low || n > high {
		return fmt.Errorf("%q, allowed %d..%d", clip(v.text()), low, high)
	}
	*dst = n
	return nil
}

func setDuration(dst *time.Duration, v value, low, high time.Duration) error {
	d, err := time.ParseDuration(v.text())
	if err != nil || d < low || d > high {
		return fmt.Errorf("%q, allowed a duration such as 1.5s, %v..%v", clip(v.text()), low, high)
	}
	*dst = d
	return nil
}

func setLogLevel(c *Config, _ Host, v value) error {
	levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	l, ok := levels[v.text()]
	if !ok {
		return fmt.Errorf("%q, allowed debug, info, warn, error", clip(v.text()))
	}
	c.LogLevel = l
	return nil
}

func setLogFormat(c *Config, _ Host, v value) error {
	c.LogFormat = v.text()
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return fmt.Errorf("%q, allowed text, json", clip(c.LogFormat))
	}
	return nil
}

func setProviders(c *Config, _ Host, v value) error {
	c.Providers = nil
	for _, one := range list(v) {
		if !slices.Contains(KnownProviders, one) || slices.Contains(c.Providers, one) {
			return fmt.Errorf("%q, allowed each once: %s", clip(one), strings.Join(KnownProviders, ", "))
		}
		c.Providers = append(c.Providers, one)
	}
	if len(c.Providers) == 0 {
		return fmt.Errorf("none, allowed at least one of: %s", strings.Join(KnownProviders, ", "))
	}
	return nil
}

// list splits at commas; empty items are dropped.
func list(v value) []string {
	var out []string
	for _, s := range v.items {
		for one := range strings.SplitSeq(s, ",") {
			if one = strings.TrimSpace(one); one != "" {
				out = append(out, one)
			}
		}
	}
	return out
}
