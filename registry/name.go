package registry

import (
	"crypto/rand"
	"encoding/hex"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// MaxNameLen bounds the names of nodes and caches, in bytes.
const MaxNameLen = 64

// EpochLen is the length of an epoch in hex digits (128 random bits).
const EpochLen = 32

// ValidateName checks the name of a node or a cache; field is what the error calls it.
func ValidateName(field, s string) error {
	ok := len(s) >= 1 && len(s) <= MaxNameLen && isAlnum(s[0])
	for i := 0; ok && i < len(s); i++ {
		ok = isAlnum(s[i]) || s[i] == '_' || s[i] == '.' || s[i] == '-'
	}
	if !ok {
		return fault.Invalid("", field, "%.80q is not a name: allowed are 1 to %d characters of [A-Za-z0-9_.-], the first a letter or digit", s, MaxNameLen)
	}
	return nil
}

// validateTenant checks a tenant's name, which may begin with any of its characters.
func validateTenant(field, s string) error {
	ok := len(s) >= 1 && len(s) <= MaxNameLen
	for i := 0; ok && i < len(s); i++ {
		ok = isAlnum(s[i]) || s[i] == '_' || s[i] == '.' || s[i] == '-'
	}
	if !ok {
		return fault.Invalid("", field, "%.80q is no tenant: allowed are 1 to %d characters of [A-Za-z0-9_.-]", s, MaxNameLen)
	}
	return nil
}

func tenantOf(s string) string {
	if s == "" {
		return DefaultTenant
	}
	return s
}

// ValidateEpoch checks that s is 32 lower-case hex digits. One spelling only, because epochs are compared as strings.
func ValidateEpoch(field, s string) error {
	ok := len(s) == EpochLen
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
	}
	if !ok {
		return fault.Invalid("", field, "%.80q is not an epoch: allowed are %d lower-case hex digits", s, EpochLen)
	}
	return nil
}

// NewEpoch makes the epoch of one daemon start from the system's random source.
func NewEpoch() string {
	var b [EpochLen / 2]byte
	_, _ = rand.Read(b[:]) // never fails: the runtime ends the process instead
	return hex.EncodeToString(b[:])
}

func isAlnum(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z'
}
