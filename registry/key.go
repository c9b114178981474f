package registry

import (
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Key is where an entry lives. A node's key has the node's name alone; a cache's has all four, so that two
// incarnations of a node never write to the same cache key, nor two tenants on one node.
type Key struct {
	Node   string
	Epoch  string // "" for a node entry
	Tenant string // "" for a node entry
	Cache  string // "" for a node entry
}

const (
	nodePrefix  = "node"
	cachePrefix = "cache"
)

// IsNode reports whether k is the key of a node entry.
func (k Key) IsNode() bool { return k.Cache == "" }

// String gives the key as the directory stores it: "node.NAME", "cache.NODE.EPOCH.NAME" in the default tenant and
// "cache.NODE.EPOCH.TENANT.NAME" in another. The dot separates tokens there, so a dot inside a name is written '=', which no name contains.
func (k Key) String() string {
	if k.IsNode() {
		return nodePrefix + "." + token(k.Node)
	}
	tenant := ""
	if t := tenantOf(k.Tenant); t != DefaultTenant {
		tenant = token(t) + "."
	}
	return cachePrefix + "." + token(k.Node) + "." + k.Epoch + "." + tenant + token(k.Cache)
}

// ParseKey is the inverse of String; it fails with InvalidArgument for anything String never gives.
func ParseKey(s string) (Key, error) {
	p := strings.Split(s, ".")
	var k Key
	switch {
	case len(p) == 2 && p[0] == nodePrefix:
		k = Key{Node: untoken(p[1])}
	case (len(p) == 4 || len(p) == 5) && p[0] == cachePrefix:
		k = Key{Node: untoken(p[1]), Epoch: p[2], Tenant: DefaultTenant, Cache: untoken(p[len(p)-1])}
		if len(p) == 5 {
			if k.Tenant = untoken(p[3]); k.Tenant == DefaultTenant {
				return Key{}, fault.Invalid("", "key", "%.200q names the default tenant: allowed is the key without it", s)
			}
			if err := validateTenant("key", k.Tenant); err != nil {
				return Key{}, err
			}
		}
		if err := ValidateName("key", k.Cache); err != nil {
			return Key{}, err
		}
		if err := ValidateEpoch("key", k.Epoch); err != nil {
			return Key{}, err
		}
	default:
		return Key{}, fault.Invalid("", "key", "%.200q is no key of this registry: allowed are node.NAME, cache.NODE.EPOCH.NAME and cache.NODE.EPOCH.TENANT.NAME", s)
	}
	if err := ValidateName("key", k.Node); err != nil {
		return Key{}, err
	}
	return k, nil
}

func token(name string) string { return strings.ReplaceAll(name, ".", "=") }
func untoken(t string) string  { return strings.ReplaceAll(t, "=", ".") }
