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
	RegionMemfd = "memfd"
	ModeWrite   = "write"
	ModeRead    = "read" // refused with NotSupported by this version
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
	return first(checkText(op, "software", h.Software, 0), checkText(op, "process", h.Process, 0))
}

// Validate checks the fields.
func (r *RegisterRegion) Validate() error {
	const op = "register_region"
	if err := first(CheckName(op, "name", r.Name), checkHex(op, "id", r.ID, 16)); err != nil {
		return err
	}
	if r.Kind != RegionMemfd {
		return fault.Invalid(op, "kind", "%q, allowed %s", clip(r.Kind, MaxName), RegionMemfd)
	}
	if r.Size < 1 || r.Size > MaxRegionBytes {
		return fault.Invalid(op, "size", "%d, allowed 1..%d", r.Size, MaxRegionBytes)
	}
	return nil
}

// Validate checks the fields, the layout too.
func (r *RegisterCache) Validate() error {
	const op = "register_cache"
	return first(CheckName(op, "name", r.Name), checkText(op, "model", r.Model, 1), checkText(op, "revision", r.Revision, 0),
		checkText(op, "compat", r.Compat, 0), r.Layout.Validate(), checkNumBlocks(op, "num_blocks", r.NumBlocks))
}

// Validate checks the fields.
func (r *LeaseRequest) Validate() error {
	if r.Mode != ModeWrite && r.Mode != ModeRead { // what a node cannot grant is NotSupported, not wrong
		return fault.Invalid("lease", "mode", "%q, allowed %s, %s", clip(r.Mode, MaxName), ModeWrite, ModeRead)
	}
	return CheckMillis("lease", "ttl_ms", r.TTLMillis)
}

// Validate checks the fields but the ticket, which ParseTicket reads.
func (r *PushRequest) Validate() error {
	if r.SpanID != "" {
		if err := checkHex("push", "span_id", r.SpanID, 8); err != nil {
			return err
		}
	}
	return CheckMillis("push", "timeout_ms", r.TimeoutMillis)
}

// Validate checks the fields; the error never repeats the secret.
func (b *Bind) Validate() error {
	const op = "bind"
	if len(b.Secret) != 16 {
		return fault.Invalid(op, "secret", "%d bytes, allowed 16", len(b.Secret))
	}
	return first(checkHex(op, "lease", b.Lease, 16), checkHex(op, "transfer", b.Transfer, 16), checkText(op, "model", b.Model, 1),
		checkText(op, "revision", b.Revision, 0), checkText(op, "compat", b.Compat, 0), b.Layout.Validate(),
		checkNumBlocks(op, "blocks", b.Blocks), CheckMillis(op, "remaining_ms", b.RemainingMillis))
}

// Validate checks the fields; without that a source would plan with a geometry that overflows.
func (b *Bound) Validate() error {
	const op = "bound"
	return first(b.Layout.Validate(), layout.Geometry{Layout: b.Layout, NumBlocks: b.NumBlocks}.Validate(MaxRegionBytes),
		CheckMillis(op, "remaining_ms", b.RemainingMillis))
}
