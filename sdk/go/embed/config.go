package embed

import (
	"log/slog"
	"time"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

// Config are the settings of a node; `kvxfer serve --help` says each one's range. An empty field has the default that stands
// beside it. The environment is not read, except where OTelEnvironment asks for it (OTEL_RESOURCE_ATTRIBUTES alone is always part of
// a trace's resource: OpenTelemetry's library adds it). Errors name a field as the setting of
// `kvxfer serve`: "max-clients" for MaxClients.
type Config struct {
	// Node is the node's name, unique in the registry: 1..64 of [A-Za-z0-9_.-], the first a letter or digit. "": the host name.
	Node string
	// StateDir has metadata of blocks and the journal, one node a directory. "": a directory of its own that Close removes, so
	// that a restart serves nothing again.
	StateDir string
	// Socket is for clients, of at most 107 bytes. "": one in a directory of its own that Close removes.
	Socket string

	// Listen is the port for peers, IP:PORT, an interface's or a host's name with a port. "": 127.0.0.1 and a port that the
	// kernel chooses. Beyond loop-back it needs the TLS files or InsecurePeers.
	Listen string
	// Advertise is what peers dial. "": Listen, or where that is every address, an error.
	Advertise string
	// HTTP is the port of /healthz, /readyz, /status and /metrics. "": none.
	HTTP string

	// NATS are the registry's URLs, separated by commas. "": a server of the node's own, inside the process.
	NATS string
	// NATSListen is the port of that server for other nodes. "": none.
	NATSListen string
	// RegistryReplicas is how many servers of a NATS cluster keep the registry, 1, 3 or 5. 0: 1.
	RegistryReplicas int
	// NATSCreds (user JWT and seed), or NATSUser with NATSPasswordFile, or NATSTokenFile are what this node shows to the NATS server, or
	// what its own server asks of others. Files, which are read again for every connection.
	NATSCreds, NATSUser, NATSPasswordFile, NATSTokenFile string
	// NATSTLSCA are the authorities that sign the NATS server's certificate, NATSTLSCert and NATSTLSKey this node's own there: PEM files.
	NATSTLSCA, NATSTLSCert, NATSTLSKey string
	// InsecureNATS permits the node's own server beyond loop-back without credentials: on a network that you trust.
	InsecureNATS bool

	// TLSCert, TLSKey and TLSCA are PEM files: this node's certificate, its key, and who signs peers'. All three or none.
	TLSCert, TLSKey, TLSCA string
	// TLSLanes sends payload over TLS too, which costs copies.
	TLSLanes bool
	// InsecurePeers permits peers from beyond the host without TLS: on a network that you trust.
	InsecurePeers bool

	// Tenant is of clients that name none. "": "default".
	Tenant string
	// AllowTenants are others that clients may name.
	AllowTenants []AllowedTenant
	// AllowUIDs are users that may attach besides root and the program's own.
	AllowUIDs []int

	Lanes      int // TCP connections a session, 1..64; 0: 4
	MaxClients int // attached at a time, 1..65536; 0: 256

	// Of each client: regions, 1..4096 (64), leases and transfers that have not ended, 1..1048576 (8192 each).
	MaxRegions, MaxLeases, MaxTransfers int

	// DrainTimeout is how long Close waits for transfers, at most 1h. 0: 10s; the context of Close makes it shorter.
	DrainTimeout time.Duration
	// Heartbeat is the time between two signs of life in the registry, 50ms..10m. 0: 2s.
	Heartbeat time.Duration

	// Providers are the ways that blocks may take to and from peers, best first. None: shm, verbs, tcp, without verbs where this host
	// cannot use RDMA. Named here, one that cannot be used fails the start.
	Providers []string
	// RDMA are the settings of the provider verbs.
	RDMA RDMA

	// TraceFile is a file that traces are appended to, as OTLP JSON lines. "": none.
	TraceFile string
	// TraceKeep is how many finished spans stay in memory for `kvxfer trace`. 0: 8192 where traces go to a file or a collector.
	TraceKeep int
	// OTelEnvironment exports traces as the program's OTEL_* variables say (docs/tracing.md), under a tracer provider of the
	// node's own: the node also exports spans of its clients under ids of theirs, which a provider of the program's could not.
	OTelEnvironment bool

	// Logger is where the node logs. nil: slog.Default().
	Logger *slog.Logger
}

// RDMA says which devices the provider verbs uses, and how (docs/rdma.md).
type RDMA struct {
	Devices []string // that it may use, "mlx5_0", "mlx5_0:1" or a pattern, "mlx5_*"; none: all
	Exclude []string // that it may not use
	GID     string   // only ports that have this address; "": chosen

	TrafficClass int    // 0..255
	ServiceLevel int    // 0..15
	PKey         uint16 // 0: 0xffff
	Timeout      int    // 1..31: 4.096 us x 2^Timeout until a packet is sent again; 0: 16, which is 268 ms
	Retries      int    // 1..6; 0: 6
	Lanes        int    // queue pairs a pair of NICs, 1..64; 0: 4

	NoWindows         bool // memory windows are not used
	NoRelaxedOrdering bool // of payload, on PCIe
}

// AllowedTenant is a tenant that clients of some users may name.
type AllowedTenant struct {
	Name string // 1..64 of [A-Za-z0-9_.-]
	UIDs []int  // who may; nil: every user who may attach
}

// anyPort is the default of Listen: several nodes in a program, or a daemon on the same host, never fight for a port.
const anyPort = "127.0.0.1:0"

// checked is the configuration as the daemon takes it.
func (c Config) checked() (*config.Config, error) {
	in := config.Config{
		Node: c.Node, StateDir: c.StateDir, Socket: c.Socket, Listen: c.Listen, Advertise: c.Advertise, HTTP: c.HTTP, NATS: c.NATS, NATSListen: c.NATSListen,
		TLSCert: c.TLSCert, TLSKey: c.TLSKey, TLSCA: c.TLSCA, TLSLanes: c.TLSLanes, InsecurePeers: c.InsecurePeers, Tenant: c.Tenant, AllowUIDs: c.AllowUIDs,
		Lanes: c.Lanes, MaxClients: c.MaxClients, MaxRegions: c.MaxRegions, MaxLeases: c.MaxLeases, MaxTransfers: c.MaxTransfers,
		DrainTimeout: c.DrainTimeout, Heartbeat: c.Heartbeat, TraceFile: c.TraceFile, TraceKeep: c.TraceKeep,
		RegistryReplicas: c.RegistryReplicas, InsecureNATS: c.InsecureNATS,
		Registry:  natsaccess.Files{Creds: c.NATSCreds, User: c.NATSUser, Password: c.NATSPasswordFile, Token: c.NATSTokenFile, CA: c.NATSTLSCA, Cert: c.NATSTLSCert, Key: c.NATSTLSKey},
		Providers: c.Providers, RDMA: config.RDMA(c.RDMA),
	}
	if in.Listen == "" {
		in.Listen = anyPort
	}
	for _, t := range c.AllowTenants {
		in.AllowTenants = append(in.AllowTenants, config.AllowedTenant{Name: t.Name, UIDs: t.UIDs})
	}
	out, err := config.New(in)
	if err != nil {
		return nil, err
	}
	out.NoEnvironment = !c.OTelEnvironment
	return out, nil
}
