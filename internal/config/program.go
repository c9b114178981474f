package config

import (
	"strconv"
	"strings"
	"time"
)

// New checks a configuration that a program made and completes it. A field that is empty or zero stands for its setting's
// default, except HTTP, where it means none; addresses may be written as for `kvxfer serve`. Neither environment nor file is
// read. Errors are those of Load.
func New(in Config) (*Config, error) {
	l := &loader{host: thisHost(), env: map[string]string{}, bad: map[string]bool{}}
	given := values{}
	for name, text := range fields {
		if t := text(&in); t != "" {
			given[name] = value{t, "the program"}
		}
	}
	l.c.NoEnvironment = true
	return l.resolve(true, given)
}

// fields are the settings' texts in a Config, "" where the default is meant. TestEverySettingHasAField.
var fields = map[string]func(c *Config) string{
	"node":               func(c *Config) string { return c.Node },
	"state-dir":          func(c *Config) string { return c.StateDir },
	"socket":             func(c *Config) string { return c.Socket },
	"listen":             func(c *Config) string { return c.Listen },
	"advertise":          func(c *Config) string { return c.Advertise },
	"http":               httpText,
	"nats":               func(c *Config) string { return c.NATS },
	"nats-listen":        func(c *Config) string { return c.NATSListen },
	"nats-creds":         func(c *Config) string { return c.Registry.Creds },
	"nats-user":          func(c *Config) string { return c.Registry.User },
	"nats-password-file": func(c *Config) string { return c.Registry.Password },
	"nats-token-file":    func(c *Config) string { return c.Registry.Token },
	"nats-tls-cert":      func(c *Config) string { return c.Registry.Cert },
	"nats-tls-key":       func(c *Config) string { return c.Registry.Key },
	"nats-tls-ca":        func(c *Config) string { return c.Registry.CA },
	"insecure-nats":      func(c *Config) string { return switchText(c.InsecureNATS) },
	"registry-replicas":  func(c *Config) string { return numberText(c.RegistryReplicas) },
	"tls-cert":           func(c *Config) string { return c.TLSCert },
	"tls-key":            func(c *Config) string { return c.TLSKey },
	"tls-ca":             func(c *Config) string { return c.TLSCA },
	"tls-lanes":          func(c *Config) string { return switchText(c.TLSLanes) },
	"pprof":              func(c *Config) string { return switchText(c.Pprof) },
	"insecure-peers":     func(c *Config) string { return switchText(c.InsecurePeers) },
	"tenant":             func(c *Config) string { return c.Tenant },
	"allow-tenants":      tenantsText,
	"allow-uid":          func(c *Config) string { return numbersText(c.AllowUIDs, ",") },
	"lanes":              func(c *Config) string { return numberText(c.Lanes) },
	"max-clients":        func(c *Config) string { return numberText(c.MaxClients) },
	"max-regions":        func(c *Config) string { return numberText(c.MaxRegions) },
	"max-leases":         func(c *Config) string { return numberText(c.MaxLeases) },
	"max-transfers":      func(c *Config) string { return numberText(c.MaxTransfers) },
	"drain-timeout":      func(c *Config) string { return durationText(c.DrainTimeout) },
	"heartbeat":          func(c *Config) string { return durationText(c.Heartbeat) },
	"trace-file":         func(c *Config) string { return c.TraceFile },
	"trace-keep":         func(c *Config) string { return numberText(max(0, c.TraceKeep)) },
	"log-level":          func(c *Config) string { return c.LogLevel },
	"log-format":         func(c *Config) string { return c.LogFormat },
	"providers":          func(c *Config) string { return strings.Join(c.Providers, ",") },

	"rdma-devices":          func(c *Config) string { return strings.Join(c.RDMA.Devices, ",") },
	"rdma-exclude":          func(c *Config) string { return strings.Join(c.RDMA.Exclude, ",") },
	"rdma-gid":              func(c *Config) string { return c.RDMA.GID },
	"rdma-traffic-class":    func(c *Config) string { return numberText(c.RDMA.TrafficClass) },
	"rdma-service-level":    func(c *Config) string { return numberText(c.RDMA.ServiceLevel) },
	"rdma-pkey":             pkeyField,
	"rdma-timeout":          func(c *Config) string { return numberText(c.RDMA.Timeout) },
	"rdma-retries":          func(c *Config) string { return numberText(c.RDMA.Retries) },
	"rdma-lanes":            func(c *Config) string { return numberText(c.RDMA.Lanes) },
	"rdma-windows":          func(c *Config) string { return offText(c.RDMA.NoWindows) },
	"rdma-relaxed-ordering": func(c *Config) string { return offText(c.RDMA.NoRelaxedOrdering) },
}

func httpText(c *Config) string {
	if c.HTTP == "" {
		return "off"
	}
	return c.HTTP
}

func switchText(on bool) string {
	if on {
		return "true"
	}
	return ""
}

func numberText(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func durationText(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return d.String()
}

func numbersText(numbers []int, between string) string {
	texts := make([]string, len(numbers))
	for i, n := range numbers {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, between)
}

// tenantsText writes a name that would be read as something else in a way that is refused.
func tenantsText(c *Config) string {
	texts := make([]string, len(c.AllowTenants))
	for i, t := range c.AllowTenants {
		texts[i] = t.Name
		if t.Name == "" || strings.ContainsAny(t.Name, ":+, \t\r\n") {
			texts[i] = strconv.Quote(t.Name)
		}
		if t.UIDs != nil {
			texts[i] += ":" + numbersText(t.UIDs, "+")
		}
	}
	return strings.Join(texts, ",")
}
