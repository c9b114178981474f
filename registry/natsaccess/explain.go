package natsaccess

import (
	"crypto/x509"
	"errors"
	"net"

	"github.com/nats-io/nats.go"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Explain types a failure to connect that waiting does not mend: PermissionDenied where the server refuses who we are or
// what we ask, ConfigInvalid where one side's certificate is not believed or TLS is not spoken. The field is the setting to look at. It
// returns nil for every other failure.
func (f Files) Explain(op string, err error) error {
	var (
		unknown x509.UnknownAuthorityError
		name    x509.HostnameError
		invalid x509.CertificateInvalidError
		remote  *net.OpError
	)
	say := func(c fault.Code, field, detail string) error {
		return &fault.Error{Code: c, Op: op, Field: field, Detail: detail, Err: err}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return say(fault.PermissionDenied, f.credentials(), "the registry's server refuses these credentials; allowed are ones that it knows")
	case errors.Is(err, nats.ErrPermissionViolation):
		return say(fault.PermissionDenied, f.credentials(), "the registry's server does not let this user use JetStream and the registry's bucket; docs/registry.md has what it needs")
	case errors.As(err, &unknown):
		return say(fault.ConfigInvalid, "nats-tls-ca", "the certificate of the registry's server is signed by none of these authorities")
	case errors.As(err, &name):
		return say(fault.ConfigInvalid, "nats", "the certificate of the registry's server does not name the host of the URL; allowed is a host or an IP that it names")
	case errors.As(err, &invalid):
		return say(fault.ConfigInvalid, "nats-tls-ca", "the certificate of the registry's server is not valid")
	case errors.As(err, &remote) && remote.Op == "remote error": // a TLS alert, which has no type of its own
		return f.Refused(op, err)
	case errors.Is(err, nats.ErrSecureConnWanted):
		return say(fault.ConfigInvalid, "nats", "the registry's server speaks no TLS, but the URL or nats-tls-ca asks for it")
	}
	return nil
}

// Refused is the error about a client's certificate. A server that refuses one may close the connection before its reason
// arrives (nats.ErrTLS), which one that goes down does too: so Explain does not say this of it.
func (f Files) Refused(op string, err error) error {
	return &fault.Error{Code: fault.PermissionDenied, Op: op, Field: "nats-tls-cert", Err: err,
		Detail: "the registry's server refuses this certificate, or wants one where there is none"}
}

// credentials is the setting that holds them.
func (f Files) credentials() string {
	switch {
	case f.Creds != "":
		return "nats-creds"
	case f.User != "":
		return "nats-password-file"
	case f.Token != "":
		return "nats-token-file"
	}
	return "nats" // none, or those of the URL
}
