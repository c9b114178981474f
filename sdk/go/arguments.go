package kvxfer

import (
	"context"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxDuration is the longest time that may be asked for.
const maxDuration = 24 * time.Hour

// Times where neither a context nor an option gives one.
const (
	defaultTimeout  = 5 * time.Second  // for the daemon's answer
	defaultTTL      = 30 * time.Second // of a lease or an advertisement
	defaultTransfer = 30 * time.Second
	fenceTimeout    = 10 * time.Second // within which what was revoked is expected to be fenced
	slowTimeout     = 30 * time.Second // of what hands memory over or takes it back
	instanceTimeout = 15 * time.Second // for the answer of an instance's nodes
	lookupTimeout   = time.Second      // for the answer of all nodes
)

// checkTTL fills in the default and checks the range.
func checkTTL(op string, ttl, otherwise time.Duration) (time.Duration, error) {
	if ttl == 0 {
		ttl = otherwise
	}
	if ttl < time.Millisecond || ttl > maxDuration {
		return 0, invalid(op, "ttl", "%s, allowed 1ms..24h", ttl)
	}
	return ttl, nil
}

// timeLeft is what remains until ctx's deadline, or otherwise where it has none, as a time that may travel. A context that
// has ended leaves the shortest: the call itself sees that.
func timeLeft(ctx context.Context, otherwise time.Duration) time.Duration {
	d := otherwise
	if at, ok := ctx.Deadline(); ok {
		d = time.Until(at)
	}
	return min(max(d, time.Millisecond), maxDuration)
}

// millis rounds up: a daemon must not end a call before its caller would.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func checkNotification(op string, note []byte) error {
	if len(note) > wire.MaxNotification {
		return invalid(op, "notification", "%d bytes, allowed 0..%d", len(note), wire.MaxNotification)
	}
	return nil
}

func checkName(op, field, s string) error {
	return asError(op, wire.CheckName(op, field, s))
}

func checkText(op, field, s string, least int) error {
	if len(s) < least || len(s) > wire.MaxText {
		return invalid(op, field, "%d bytes, allowed %d..%d", len(s), least, wire.MaxText)
	}
	return nil
}

// checkHex32 refuses what is not 32 lower-case hex digits.
func checkHex32(op, field, s string) error {
	ok := len(s) == 32
	for i := 0; ok && i < len(s); i++ {
		ok = s[i] >= '0' && s[i] <= '9' || s[i] >= 'a' && s[i] <= 'f'
	}
	if !ok {
		return invalid(op, field, "%.80q, allowed 32 lower-case hex digits", s)
	}
	return nil
}

// checkInstance checks an engine's name and its secret, which no error repeats.
func checkInstance(op, instance string, key []byte) error {
	if err := checkName(op, "instance", instance); err != nil {
		return err
	}
	if len(key) < wire.MinInstanceKey || len(key) > wire.MaxInstanceKey {
		return invalid(op, "instance_key", "%d bytes, allowed %d..%d", len(key), wire.MinInstanceKey, wire.MaxInstanceKey)
	}
	return nil
}

// refused says of an error that the daemon answered whether it changed nothing: those of the group ErrRequest.
func refused(fe *fault.Error) bool { return fe != nil && rows[fe.Code.String()].group == ErrRequest }
