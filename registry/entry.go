package registry

import (
	"bytes"
	"encoding/json"
	"net"
	"strconv"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/version"
)

const (
	// MaxEntryBytes bounds one encoded entry, in bytes.
	MaxEntryBytes = 256 << 10
	// maxText bounds each free text field of an entry, in bytes; maxList the number of words in a list.
	maxText = 512
	maxList = 64
)

// Protocol is a range of versions of the peer protocol, both ends included.
type Protocol struct {
	Min int `json:"min"`
	Max int `json:"max"`
}

// Node is what a daemon says about itself. Values from a View share their slices: do not change them.
type Node struct {
	Format        int      `json:"format"`
	Name          string   `json:"name"`
	Epoch         string   `json:"epoch"`               // this start of the daemon; compared for equality only
	PeerAddr      string   `json:"peer_addr"`           // "host:port" that peers dial
	HTTPAddr      string   `json:"http_addr,omitempty"` // "host:port", "" without HTTP
	Version       string   `json:"version,omitempty"`   // of the software
	Protocol      Protocol `json:"protocol"`
	Providers     []string `json:"providers,omitempty"`
	MemoryKinds   []string `json:"memory_kinds,omitempty"`
	StartedUnixMs int64    `json:"started_unix_ms,omitempty"` // for people; no rule reads it
	Draining      bool     `json:"draining,omitempty"`
	NUMANodes     int      `json:"numa_nodes,omitempty"` // of the host; 0: unknown
	// Beats says that the node's sign of life is another entry than this one, which then stays as it is: the directory sets it.
	Beats bool `json:"beats,omitempty"`
}

// DefaultTenant is the tenant of an entry that names none.
const DefaultTenant = "default"

// Cache is what a node says about one cache of one of its clients. The layout is opaque here.
type Cache struct {
	Format     int             `json:"format"`
	Node       string          `json:"node"`
	Epoch      string          `json:"epoch"`
	Tenant     string          `json:"tenant,omitempty"` // "" is DefaultTenant: so it is stored, and decoded it is spelled out
	Name       string          `json:"name"`             // unique in its tenant on its node
	ID         string          `json:"id,omitempty"`
	Model      string          `json:"model,omitempty"`
	Revision   string          `json:"revision,omitempty"` // of the model
	Compat     string          `json:"compat,omitempty"`   // caches with different values cannot exchange blocks
	Layout     json.RawMessage `json:"layout,omitempty"`
	MemoryKind string          `json:"memory_kind,omitempty"`
	NUMANode   *int            `json:"numa_node,omitempty"` // where most of the memory lies; nil: unknown, or a host with one
	Instance   string          `json:"instance,omitempty"`  // the engine whose rank it is, "" for none
	Rank       int             `json:"rank,omitempty"`      // of Ranks
	Ranks      int             `json:"ranks,omitempty"`     // ranks of the engine; 0 without Instance
	NumBlocks  int             `json:"num_blocks"`
	BlockBytes int64           `json:"block_bytes"`
	Bytes      int64           `json:"bytes"`
}

// Key is where the node's entry lives.
func (n *Node) Key() Key { return Key{Node: n.Name} }

// Key is where the cache's entry lives.
func (c *Cache) Key() Key {
	return Key{Node: c.Node, Epoch: c.Epoch, Tenant: tenantOf(c.Tenant), Cache: c.Name}
}

// Validate checks every field of a node of this format.
func (n *Node) Validate() error {
	if err := n.claim(); err != nil {
		return err
	}
	if err := checkAddr("peer_addr", n.PeerAddr); err != nil {
		return err
	}
	if n.HTTPAddr != "" {
		if err := checkAddr("http_addr", n.HTTPAddr); err != nil {
			return err
		}
	}
	if n.Protocol.Min < 1 || n.Protocol.Max < n.Protocol.Min {
		return fault.Invalid("", "protocol", "%d to %d is no range: allowed are 1 <= min <= max", n.Protocol.Min, n.Protocol.Max)
	}
	if err := checkWords("providers", n.Providers); err != nil {
		return err
	}
	if err := checkWords("memory_kinds", n.MemoryKinds); err != nil {
		return err
	}
	if n.NUMANodes < 0 {
		return fault.Invalid("", "numa_nodes", "%d is negative: allowed is 0 and more", n.NUMANodes)
	}
	return checkText("version", n.Version)
}

// Validate checks every field of a cache of this format.
func (c *Cache) Validate() error {
	if err := c.claim(); err != nil {
		return err
	}
	for _, f := range [...]struct{ name, s string }{
		{"id", c.ID}, {"model", c.Model}, {"revision", c.Revision}, {"compat", c.Compat}, {"memory_kind", c.MemoryKind},
		{"instance", c.Instance},
	} {
		if err := checkText(f.name, f.s); err != nil {
			return err
		}
	}
	for _, f := range [...]struct {
		name string
		n    int64
	}{{"rank", int64(c.Rank)}, {"ranks", int64(c.Ranks)}, {"num_blocks", int64(c.NumBlocks)}, {"block_bytes", c.BlockBytes}, {"bytes", c.Bytes}} {
		if f.n < 0 {
			return fault.Invalid("", f.name, "%d is negative: allowed is 0 and more", f.n)
		}
	}
	if c.NUMANode != nil && *c.NUMANode < 0 {
		return fault.Invalid("", "numa_node", "%d is negative: allowed is 0 and more", *c.NUMANode)
	}
	if len(c.Layout) > 0 && !json.Valid(c.Layout) {
		return fault.Invalid("", "layout", "not JSON: allowed is one JSON value")
	}
	return nil
}

// claim checks what an entry of every format has.
func (n *Node) claim() error {
	if err := checkFormat(n.Format); err != nil {
		return err
	}
	if err := ValidateName("name", n.Name); err != nil {
		return err
	}
	return ValidateEpoch("epoch", n.Epoch)
}

func (c *Cache) claim() error {
	if err := checkFormat(c.Format); err != nil {
		return err
	}
	if err := ValidateName("node", c.Node); err != nil {
		return err
	}
	if err := ValidateEpoch("epoch", c.Epoch); err != nil {
		return err
	}
	if c.Tenant != "" {
		if err := validateTenant("tenant", c.Tenant); err != nil {
			return err
		}
	}
	return ValidateName("name", c.Name)
}

// Encode gives the entry's stored form; it fails with InvalidArgument on a field outside its range.
func (n *Node) Encode() ([]byte, error) {
	if err := n.Validate(); err != nil {
		return nil, err
	}
	return encode(n)
}

// Encode gives the entry's stored form; it fails with InvalidArgument on a field outside its range.
func (c *Cache) Encode() ([]byte, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	e := *c
	if e.Tenant == DefaultTenant {
		e.Tenant = ""
	}
	return encode(&e)
}

// DecodeNode reads a node entry. Unknown fields are ignored. An entry of this format must be valid in every field;
// one of a newer format, whose rules are not known here, only has to parse and to carry a claim.
func DecodeNode(raw []byte) (Node, error) {
	var n Node
	if err := decode(raw, &n); err != nil {
		return Node{}, err
	}
	check := n.Validate
	if n.Format > Format {
		check = n.claim
	}
	if err := check(); err != nil {
		return Node{}, err
	}
	return n, nil
}

// DecodeCache reads a cache entry, by the same rules as DecodeNode.
func DecodeCache(raw []byte) (Cache, error) {
	var c Cache
	if err := decode(raw, &c); err != nil {
		return Cache{}, err
	}
	check := c.Validate
	if c.Format > Format {
		check = c.claim
	}
	if err := check(); err != nil {
		return Cache{}, err
	}
	c.Tenant = tenantOf(c.Tenant)
	return c, nil
}

// DecodeClaim reads who holds a node entry, from an entry of any format, even one that DecodeNode refuses: a newer
// daemon's entry that is unreadable here is still a live daemon's.
func DecodeClaim(raw []byte) (name, epoch string, err error) {
	var c struct {
		Format int    `json:"format"`
		Name   string `json:"name"`
		Epoch  string `json:"epoch"`
	}
	if err := decode(raw, &c); err != nil {
		return "", "", err
	}
	n := Node{Format: c.Format, Name: c.Name, Epoch: c.Epoch}
	return c.Name, c.Epoch, n.claim()
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fault.Wrap(fault.Internal, "registry entry", err)
	}
	raw := version.WithUnknownFields(bytes.TrimSuffix(b.Bytes(), []byte("\n")))
	if len(raw) > MaxEntryBytes {
		return nil, fault.Invalid("", "layout", "the entry takes %d bytes: allowed are %d", len(raw), MaxEntryBytes)
	}
	return raw, nil
}

func decode(raw []byte, v any) error {
	if len(raw) > MaxEntryBytes {
		return fault.Invalid("", "entry", "%d bytes: allowed are %d", len(raw), MaxEntryBytes)
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return &fault.Error{Code: fault.InvalidArgument, Field: "entry", Detail: "not a JSON object of the known fields", Err: err}
	}
	return nil
}

func checkFormat(f int) error {
	if f < 1 {
		return fault.Invalid("", "format", "%d: allowed is 1 and more", f)
	}
	return nil
}

func checkAddr(field, s string) error {
	host, port, err := net.SplitHostPort(s)
	p, perr := strconv.Atoi(port)
	if err != nil || perr != nil || host == "" || p < 1 || p > 65535 || len(s) > maxText {
		return fault.Invalid("", field, "%.80q is no address: allowed is host:port with a port of 1 to 65535", s)
	}
	return nil
}

func checkText(field, s string) error {
	if len(s) > maxText {
		return fault.Invalid("", field, "%d bytes: allowed are %d", len(s), maxText)
	}
	return nil
}

func checkWords(field string, l []string) error {
	if len(l) > maxList {
		return fault.Invalid("", field, "%d words: allowed are %d", len(l), maxList)
	}
	for _, s := range l {
		if err := ValidateName(field, s); err != nil {
			return err
		}
	}
	return nil
}
