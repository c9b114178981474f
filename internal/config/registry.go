package config

import (
	"slices"
	"strconv"

	"github.com/kvxfer/kvxfer/registry"
)

// registrySettings are the rows about the registry's server besides its address. They serve both ways of running it: the
// embedded server asks of others what this node shows to a server of its own.
func registrySettings() []setting {
	return []setting{
		pem("nats-creds", "credentials file for the NATS server (user JWT and seed); needs nats", func(c *Config) *string { return &c.Registry.Creds }),
		{name: "nats-user", arg: "NAME", defText: "none", meaning: "user at the NATS server, or the one that the embedded server asks for; needs nats-password-file",
			allowed: "1 to 64 of [A-Za-z0-9_.-], the first a letter or digit, or nothing", set: func(l *loader, v string) error {
				l.c.Registry.User = v
				return errIf(v != "" && registry.ValidateName("nats-user", v) != nil)
			}},
		pem("nats-password-file", "the user's password, one line", func(c *Config) *string { return &c.Registry.Password }),
		pem("nats-token-file", "token for the NATS server, or the one that the embedded server asks for; one line", func(c *Config) *string { return &c.Registry.Token }),
		pem("nats-tls-cert", "certificate for the NATS server, or the embedded server's own, PEM; needs nats-tls-key", func(c *Config) *string { return &c.Registry.Cert }),
		pem("nats-tls-key", "the certificate's private key, PEM", func(c *Config) *string { return &c.Registry.Key }),
		pem("nats-tls-ca", "the authorities that sign the NATS server's certificate (the host's where not set), or its clients' where the server is embedded, PEM", func(c *Config) *string { return &c.Registry.CA }),
		toggle("insecure-nats", "the embedded NATS server may listen beyond loop-back without credentials: on a network that you trust", func(c *Config) *bool { return &c.InsecureNATS }),
		{name: "registry-replicas", arg: "N", def: "1", meaning: "servers of a NATS cluster that keep the registry; 3 survives the loss of one", allowed: "1, 3 or 5; more than 1 needs nats", kind: numberKind,
			set: func(l *loader, v string) error {
				n, err := strconv.Atoi(v)
				l.c.RegistryReplicas = n
				return errIf(err != nil || n != 1 && n != 3 && n != 5)
			}},
	}
}

// finishRegistry checks what the registry's settings want of each other, and that the embedded server knows who connects
// from beyond the host. As with peers, what counts is where it listens.
func (l *loader) finishRegistry(effective values, ok func(...string) bool) {
	a := l.c.Registry
	from := func(name string) string { return effective[name].source }
	given := func(name, value string) bool { return value != "" && ok(name) }

	var kinds []string
	for _, k := range []struct{ name, value string }{{"nats-creds", a.Creds}, {"nats-user", a.User}, {"nats-token-file", a.Token}} {
		if given(k.name, k.value) {
			kinds = append(kinds, k.name)
		}
	}
	if len(kinds) > 1 {
		l.fail(kinds[1], "set by %s, but %s is from %s; allowed: one of nats-creds, nats-user with nats-password-file, nats-token-file", from(kinds[1]), kinds[0], from(kinds[0]))
	}
	for _, p := range [...]struct{ name, value, needs, have string }{
		{"nats-user", a.User, "nats-password-file", a.Password}, {"nats-password-file", a.Password, "nats-user", a.User},
		{"nats-tls-cert", a.Cert, "nats-tls-key", a.Key}, {"nats-tls-key", a.Key, "nats-tls-cert", a.Cert},
	} {
		if given(p.name, p.value) && ok(p.needs) && p.have == "" {
			l.fail(p.needs, "not set, but %s is from %s; allowed: %s and %s together, or none of them", p.name, from(p.name), p.name, p.needs)
		}
	}
	if !ok("nats", "nats-listen", "registry-replicas") || l.c.NATS != "" {
		return
	}
	if given("nats-creds", a.Creds) {
		l.fail("nats-creds", "set by %s, but the embedded server has no accounts; allowed: with nats, or nats-token-file or nats-user here", from("nats-creds"))
	}
	if l.c.RegistryReplicas > 1 {
		l.fail("registry-replicas", "%d from %s is not allowed without nats: the embedded server is alone; allowed: 1", l.c.RegistryReplicas, from("registry-replicas"))
	}
	if given("nats-tls-ca", a.CA) && a.Cert == "" && ok("nats-tls-cert", "nats-tls-key") {
		l.fail("nats-tls-cert", "not set, but nats-tls-ca is from %s: the embedded server has no TLS to ask clients for certificates; allowed: nats-tls-cert and nats-tls-key too", from("nats-tls-ca"))
	}
	open := l.natsListen.set() && !l.natsListen.ip.IsLoopback()
	names := []string{"nats-user", "nats-password-file", "nats-token-file", "nats-tls-cert", "nats-tls-key", "nats-tls-ca", "insecure-nats", "insecure-peers"}
	if open && !slices.ContainsFunc(names, func(n string) bool { return l.bad[n] }) && !a.Authenticates() && !l.c.InsecureNATS && !l.c.InsecurePeers {
		l.fail("nats-listen", "%q from %s is reached from beyond this host, and whoever reaches it could change the registry; allowed: a loop-back address, any address with nats-token-file, with nats-user and nats-password-file or with nats-tls-cert, nats-tls-key and nats-tls-ca, or any with insecure-nats or insecure-peers where the network is trusted",
			effective["nats-listen"].text, from("nats-listen"))
	}
}
