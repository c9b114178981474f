package wire

import (
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/xfer/layout"
)

// Ranges of fields. Validate methods check what a body says by itself; whether ids name something, whether a cache
// fits its region and whether blocks are in range is known only to the node.
const (
	// MaxName bounds names of regions, caches, nodes, tenants and features, in bytes.
	MaxName = 64
	// MaxText bounds model, revision and compatibility string, in bytes.
	MaxText = 1024
	// MaxMillis bounds every duration that travels, in milliseconds: one day.
	MaxMillis = int64(24 * time.Hour / time.Millisecond)
	// MaxRegionBytes bounds a region's size, in bytes.
	MaxRegionBytes = uint64(1) << 62
)

// Spellings of fields with a fixed choice.
const (
	RegionMemfd   = "memfd"
	RegionProcess = "process"
	ModeWrite     = "write"
	ModeRead      = "read"

	GuaranteeFull       = "full"
	GuaranteeLiveClient = "live-client-only"
)

// Ranges of counts.
const (
	MaxReaders     = 65535
	MinInstanceKey = 16
	MaxInstanceKey = 64
	MaxLookupKeys  = 1 << 16
)

// CheckName refuses what is not 1..64 of [A-Za-z0-9_.-].
func CheckName(op, field, s string) error {
	ok := len(s) >= 1 && len(s) <= MaxName
	for i := 0; ok && i < len(s); i++ {
		c := s[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-'
	}
	if !ok {
		return fault.Invalid(op, field, "%q, allowed 1..%d of [A-Za-z0-9_.-]", clip(s, MaxName), MaxName)
	}
	return nil
}

func checkText(op, field, s string, atLeast int) error {
	if len(s) < atLeast || len(s) > MaxText {
		return fault.Invalid(op, field, "%d bytes, allowed %d..%d", len(s), atLeast, MaxText)
	}
	return nil
}

func checkHex(op, field, s string, n int) error {
	if !isHex(s, n) {
		return fault.Invalid(op, field, "%q, allowed %d lower-case hex digits", clip(s, MaxName), 2*n)
	}
	return nil
}

// CheckMillis refuses a duration outside 1 ms to a day; both ends of a socket hold a request to it.
func CheckMillis(op, field string, ms int64) error {
	if ms < 1 || ms > MaxMillis {
		return fault.Invalid(op, field, "%d, allowed 1..%d", ms, MaxMillis)
	}
	return nil
}

func checkNumBlocks(op, field string, n uint32) error {
	if n < 1 || n > layout.MaxBlocks {
		return fault.Invalid(op, field, "%d, allowed 1..%d", n, layout.MaxBlocks)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// CheckNotification refuses a notification that is too large.
func CheckNotification(op string, b []byte) error {
	if len(b) > MaxNotification {
		return fault.Invalid(op, "notification", "%d bytes, allowed 0..%d", len(b), MaxNotification)
	}
	return nil
}

// Validate checks the fields that say who speaks; Negotiate calls it once the version is known.
func (h *Hello) Validate() error {
	const op = "hello"
	for _, f := range [...]struct{ field, v string }{
		{"tenant", h.Tenant}, {"node", h.Node}, {"want_node", h.WantNode}, {"provider", h.Provider},
	} {
		if f.v == "" {
			continue
		}
		if err := CheckName(op, f.field, f.v); err != nil {
			return err
		}
	}
	for _, f := range [...]struct{ field, v string }{{"epoch", h.Epoch}, {"want_epoch", h.WantEpoch}} {
		if f.v == "" {
			continue
		}
		if err := checkHex(op, f.field, f.v, 16); err != nil {
			return err
		}
	}
	for _, a := range h.Absent {
		if err := first(CheckName(op, "absent", a.Provider), checkText(op, "absent", a.Why, 0)); err != nil {
			return err
		}
	}
	return first(checkText(op, "software", h.Software, 0), checkText(op, "process", h.Process, 0))
}

// Validate checks the fields.
func (r *RegisterRegion) Validate() error {
	const op = "register_region"
	if err := first(CheckName(op, "name", r.Name), checkHex(op, "id", r.ID, 16)); err != nil {
		return err
	}
	if r.Kind != RegionMemfd && r.Kind != RegionProcess {
		return fault.Invalid(op, "kind", "%q, allowed %s, %s", clip(r.Kind, MaxName), RegionMemfd, RegionProcess)
	}
	if r.Kind == RegionProcess && (r.Addr == 0 || r.Addr > MaxRegionBytes) {
		return fault.Invalid(op, "addr", "%d, allowed 1..%d", r.Addr, MaxRegionBytes)
	}
	if r.Size < 1 || r.Size > MaxRegionBytes {
		return fault.Invalid(op, "size", "%d, allowed 1..%d", r.Size, MaxRegionBytes)
	}
	if r.Offset > MaxRegionBytes || r.Kind == RegionProcess && r.Offset != 0 {
		return fault.Invalid(op, "offset", "%d, allowed 0..%d, and 0 with kind %s", r.Offset, MaxRegionBytes, RegionProcess)
	}
	return nil
}

// Validate checks the fields, the layout too.
func (r *RegisterCache) Validate() error {
	const op = "register_cache"
	return first(CheckName(op, "name", r.Name), checkText(op, "model", r.Model, 1), checkText(op, "revision", r.Revision, 0),
		checkText(op, "compat", r.Compat, 0), r.Layout.Validate(), checkNumBlocks(op, "num_blocks", r.NumBlocks),
		checkInstance(op, r.Instance, r.InstanceKey))
}

// checkInstance refuses a name without a key and a key without a name; the error never repeats the key.
func checkInstance(op, name string, key []byte) error {
	if name == "" && len(key) == 0 {
		return nil
	}
	if err := CheckName(op, "instance", name); err != nil {
		return err
	}
	if n := len(key); n < MinInstanceKey || n > MaxInstanceKey {
		return fault.Invalid(op, "instance_key", "%d bytes, allowed %d..%d", n, MinInstanceKey, MaxInstanceKey)
	}
	return nil
}

func checkMode(op, mode string) error {
	if mode != ModeWrite && mode != ModeRead {
		return fault.Invalid(op, "mode", "%q, allowed %s, %s", clip(mode, MaxName), ModeWrite, ModeRead)
	}
	return nil
}

func checkKeyBytes(op string, n uint32) error {
	if n < 1 || n > MaxKey {
		return fault.Invalid(op, "key_bytes", "%d, allowed 1..%d", n, MaxKey)
	}
	return nil
}

// Validate checks the fields.
func (r *Publish) Validate() error { return checkKeyBytes("publish", r.KeyBytes) }

// Validate checks the fields.
func (r *Lookup) Validate() error {
	f := Find{Model: r.Model, Revision: r.Revision, Compat: r.Compat, Layout: r.Layout, KeyBytes: r.KeyBytes}
	return first(f.validate("lookup"), CheckMillis("lookup", "timeout_ms", r.TimeoutMillis))
}

// Validate checks the fields.
func (r *Open) Validate() error {
	const op = "open"
	f := Find{Model: r.Model, Revision: r.Revision, Compat: r.Compat, Layout: r.Layout, KeyBytes: r.KeyBytes}
	return first(CheckName(op, "node", r.Node), checkHex(op, "epoch", r.Epoch, 16), CheckName(op, "cache", r.Cache), f.validate(op),
		CheckMillis(op, "ttl_ms", r.TTLMillis), CheckMillis(op, "timeout_ms", r.TimeoutMillis))
}

// Validate checks the fields.
func (r *Find) Validate() error { return r.validate("find") }

func (r *Find) validate(op string) error {
	return first(checkText(op, "model", r.Model, 1), checkText(op, "revision", r.Revision, 0), checkText(op, "compat", r.Compat, 0),
		r.Layout.Validate(), checkKeyBytes(op, r.KeyBytes))
}

// Validate checks the fields.
func (r *OpenBlocks) Validate() error {
	const op = "open"
	return first(r.validate(op), CheckName(op, "cache", r.Cache), CheckMillis(op, "ttl_ms", r.TTLMillis))
}

// Validate checks the fields.
func (r *Renew) Validate() error { return CheckMillis("renew", "ttl_ms", r.TTLMillis) }

// Validate checks the fields.
func (r *Advertise) Validate() error {
	return first(checkMode("advertise", r.Mode), CheckMillis("advertise", "ttl_ms", r.TTLMillis))
}

// Validate checks the fields.
func (r *Grant) Validate() error {
	const op = "grant"
	return first(CheckName(op, "cache", r.Cache), CheckName(op, "instance", r.Instance), checkInstance(op, r.Instance, r.InstanceKey),
		checkHex(op, "lease_id", r.LeaseID, 16), checkMode(op, r.Mode), checkReaders(op, r.Readers), CheckMillis(op, "ttl_ms", r.TTLMillis))
}

// Validate checks the fields; the error never repeats the secret.
func (r *Granted) Validate() error {
	const op = "grant"
	if len(r.Secret) != 16 {
		return fault.Invalid(op, "secret", "%d bytes, allowed 16", len(r.Secret))
	}
	return checkHex(op, "lease", r.Lease, 16)
}

// Validate checks the fields.
func (r *GrantRenew) Validate() error { return CheckMillis("renew", "ttl_ms", r.TTLMillis) }

// Validate checks the fields: they are told to the client, in a frame that must not grow too large.
func (r *GrantEnded) Validate() error {
	const op = "grant"
	if r.TransferID != "" {
		if err := checkHex(op, "transfer_id", r.TransferID, 16); err != nil {
			return err
		}
	}
	return first(checkText(op, "peer", r.Peer, 0), checkText(op, "provider", r.Provider, 0))
}

// Validate checks the fields.
func (r *Claim) Validate() error { return checkHex("claim", "transfer", r.Transfer, 16) }

func checkReaders(op string, n uint32) error {
	if n > MaxReaders {
		return fault.Invalid(op, "readers", "%d, allowed 0..%d (0: 1)", n, MaxReaders)
	}
	return nil
}

func (t *TransferIdentity) validate(op string) error {
	if t.TransferID != "" {
		if err := checkHex(op, "transfer_id", t.TransferID, 16); err != nil {
			return err
		}
	}
	if t.Instance != "" {
		if err := CheckName(op, "instance", t.Instance); err != nil {
			return err
		}
	}
	if t.Provider != "" {
		return CheckName(op, "provider", t.Provider)
	}
	return nil
}

func checkTransfer(op, spanID string, t *TransferIdentity, ms int64, note []byte) error {
	if spanID != "" {
		if err := checkHex(op, "span_id", spanID, 8); err != nil {
			return err
		}
	}
	return first(t.validate(op), CheckMillis(op, "timeout_ms", ms), CheckNotification(op, note))
}

// Validate checks the fields but the ticket, which ParseTicket reads.
func (r *PullRequest) Validate() error {
	return checkTransfer("pull", r.SpanID, &r.TransferIdentity, r.TimeoutMillis, r.Notification)
}

// Validate checks the fields but the ticket, which ParseTicket reads.
func (r *ScatterRequest) Validate() error {
	return first(checkMode("scatter", r.Mode), checkTransfer("scatter", r.SpanID, &r.TransferIdentity, r.TimeoutMillis, r.Notification))
}

// Validate checks the fields.
func (r *LeaseRequest) Validate() error {
	const op = "lease"
	if r.Cache != 0 && r.Instance != "" {
		return fault.Invalid(op, "instance", "%q with cache %d, allowed is one of them", clip(r.Instance, MaxName), r.Cache)
	}
	return first(checkMode(op, r.Mode), checkReaders(op, r.Readers), checkInstance(op, r.Instance, r.InstanceKey), CheckMillis(op, "ttl_ms", r.TTLMillis))
}

// Validate checks the fields but the ticket, which ParseTicket reads.
func (r *PushRequest) Validate() error {
	const op = "push"
	switch {
	case r.Finish && r.Layerwise:
		return fault.Invalid(op, "finish", "true of a layer-wise push, allowed is PUSH_FINISH behind its layers")
	case len(r.Notification) > 0 && !r.Finish:
		return fault.Invalid(op, "notification", "%d bytes, allowed 0 without finish: PUSH_FINISH brings it", len(r.Notification))
	}
	return checkTransfer(op, r.SpanID, &r.TransferIdentity, r.TimeoutMillis, r.Notification)
}

// Validate checks the fields; the error never repeats the secret.
func (b *Bind) Validate() error {
	const op = "bind"
	if len(b.Secret) != 16 {
		return fault.Invalid(op, "secret", "%d bytes, allowed 16", len(b.Secret))
	}
	if b.Mode != "" {
		if err := checkMode(op, b.Mode); err != nil {
			return err
		}
	}
	if err := first(checkHex(op, "lease", b.Lease, 16), checkHex(op, "transfer", b.Transfer, 16), checkText(op, "instance", b.Instance, 0),
		CheckMillis(op, "remaining_ms", b.RemainingMillis)); err != nil || b.Raw {
		return err
	}
	return first(checkText(op, "model", b.Model, 1),
		checkText(op, "revision", b.Revision, 0), checkText(op, "compat", b.Compat, 0), b.Layout.Validate(),
		checkNumBlocks(op, "blocks", b.Blocks))
}

// Validate checks the fields; without that a source would plan with a geometry that overflows.
func (b *Bound) Validate() error {
	const op = "bound"
	if b.NumBlocks == 0 && b.RegionBytes > 0 { // an advertised region
		if b.RegionBytes > MaxRegionBytes {
			return fault.Invalid(op, "region_bytes", "%d, allowed 0..%d", b.RegionBytes, MaxRegionBytes)
		}
		return CheckMillis(op, "remaining_ms", b.RemainingMillis)
	}
	return first(b.Layout.Validate(), layout.Geometry{Layout: b.Layout, NumBlocks: b.NumBlocks}.Validate(MaxRegionBytes),
		CheckMillis(op, "remaining_ms", b.RemainingMillis))
}
