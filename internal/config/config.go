package config

import (
	"errors"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
)

const op = "config"

// Config is the checked configuration of a daemon. Addresses are resolved: an interface has become its address.
type Config struct {
	Node         string
	StateDir     string
	Socket       string
	Listen       string // host:port for net.Listen; port 0: the kernel chooses
	Advertise    string // host:port for peers, port 0: the listening one; "": the listening address
	HTTP         string // host:port; "": off
	NATS         []string
	NATSListen   string // host:port of the embedded server; "": in-process only
	Tenant       string
	AllowUIDs    []int
	Lanes        int // TCP connections to each peer
	MaxClients   int
	DrainTimeout time.Duration
	Heartbeat    time.Duration
	TraceFile    string
	LogLevel     slog.Level
	LogFormat    string // text or json
	Providers    []string

	// Sources says of every setting where its value came from.
	Sources map[string]string
}

// ErrHelp says that -h or --help was among the arguments.
var ErrHelp = errors.New("help was asked for")

// Host is what Load takes from the machine.
type Host struct {
	UID       int
	LookupEnv func(string) (string, bool)
	ReadFile  func(string) ([]byte, error)
	Hostname  func() (string, error)
	Network   Network
}

// ThisHost is the machine that the process runs on.
func ThisHost() Host {
	return Host{UID: os.Getuid(), LookupEnv: os.LookupEnv, ReadFile: readFile, Hostname: os.Hostname, Network: hostNetwork()}
}

// Load reads and checks the configuration; args are those behind "serve". The error joins one *fault.Error with code
// ConfigInvalid for each setting that is wrong, or is ErrHelp.
func Load(args []string, h Host) (*Config, error) {
	flags, errs, help := parseArgs(args)
	if help {
		return nil, ErrHelp
	}
	env := readEnv(h)
	file, err := loadFile(h, flags, env)
	if err != nil {
		errs = append(errs, err)
	}
	c := &Config{Sources: map[string]string{}}
	for i := range settings {
		s := &settings[i]
		v, err := s.pick(h, flags, env, file)
		c.Sources[s.name] = v.source
		if err == nil {
			if err = s.set(c, h, v); err != nil {
				err = invalid(s.name, "set by %s: %v", v.source, err)
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, c.checkTogether()...)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

// checkTogether checks what one setting says about another.
func (c *Config) checkTogether() (errs []error) {
	if host, _, _ := net.SplitHostPort(c.Listen); c.Advertise == "" && unspecified(host) {
		errs = append(errs, invalid("advertise", "set by %s: empty, but listen (set by %s) is %s, which no peer can dial; allowed: an address or an interface that peers reach",
			c.Sources["advertise"], c.Sources["listen"], c.Listen))
	}
	if len(c.NATS) > 0 && c.NATSListen != "" {
		errs = append(errs, invalid("nats-listen", "set by %s: it is for the embedded server, which does not run as nats (set by %s) names others; allowed: one of the two",
			c.Sources["nats-listen"], c.Sources["nats"]))
	}
	return errs
}

// PeerAddr is the address that peers dial, when the daemon listens on bound.
func (c *Config) PeerAddr(bound net.Addr) string {
	if c.Advertise == "" {
		return bound.String()
	}
	host, port, err := net.SplitHostPort(c.Advertise)
	if err != nil || port != "0" {
		return c.Advertise
	}
	_, port, err = net.SplitHostPort(bound.String())
	if err != nil {
		return c.Advertise
	}
	return net.JoinHostPort(host, port)
}

func invalid(field, format string, args ...any) error {
	e := fault.New(fault.ConfigInvalid, op, format, args...)
	e.Field = field
	return e
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
