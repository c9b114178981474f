package registry

import (
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Key is where an entry lives. A node's key has the node's name alone; a cache's has all three, so that two
// incarnations of a node never write to the same cache key.
type Key struct {
	Node  string
	Epoch string // "" for a node entry
	Cache string // "" for a node entry
}

const (
	nodePrefix  = "node"
	cachePrefix = "cache"
)

// IsNode reports whether k is the key of a node entry.
func (k Key) IsNode() bool { return k.Cache == "" }

// String gives the key as the directory stores it: "node.NAME" or "cache.NODE.EPOCH.NAME". The dot separates tokens
// there, so a dot inside a name is written '=', which no name contains.
func (k Key) String() string {
	if k.IsNode() {
		return nodePrefix + "." + token(k.Node)
	}
	return cachePrefix + "." + token(k.Node) + "." + k.Epoch + "." + token(k.Cache)
}

// ParseKey is the inverse of String; it fails with InvalidArgument for anything String never gives.
func ParseKey(s string) (Key, error) {
	p := strings.Split(s, ".")
	var k Key
	switch {
	case len(p) == 2 && p[0] == nodePrefix:
		k = Key{Node: untoken(p[1])}
	case len(p) == 4 && p[0] == cachePrefix:
		k = Key{Node: untoken(p[1]), Epoch: p[2], Cache: untoken(p[3])}
		if err := ValidateName("key", k.Cache); err != nil {
			return Key{}, err
		}
		if err := ValidateEpoch("key", k.Epoch); err != nil {
			return Key{}, err
		}
	default:
		return Key{}, fault.Invalid("", "key", "%.200q is no key of this registry: allowed are node.NAME and cache.NODE.EPOCH.NAME", s)
	}
	if err := ValidateName("key", k.Node); err != nil {
		return Key{}, err
	}
	return k, nil
}

func token(name string) string { return strings.ReplaceAll(name, ".", "=") }
func untoken(t string) string  { return strings.ReplaceAll(t, "=", ".") }
