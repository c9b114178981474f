package natskv

import (
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

// The defaults of Options.
const (
	DefaultBucket    = "kvxfer"
	DefaultHeartbeat = 2 * time.Second
	ttlHeartbeats    = 3   // a node's time to live, in heartbeats
	entryTTLs        = 100 // an entry's own time to live, in node's times to live
)

// Options say where the registry is and how lively it is.
type Options struct {
	// URL of the NATS server, or several separated by commas. Exactly one of URL and Dial is set.
	URL string
	// Dial connects in another way: the Connect method of an embedded server. The connection is closed by Close.
	Dial func(...nats.Option) (*nats.Conn, error)
	// Access proves this process to the server and the server to it.
	Access natsaccess.Files
	// Replicas is how many servers of a cluster keep the bucket: 1, 3 or 5; 0 means 1. A bucket that has fewer gets them; one that
	// has more keeps them.
	Replicas int
	// Name of this connection in the server's listings. With the name of the node that will be announced the watch is known to be
	// alive by the node's own heartbeats; with another, or without a node, it is made anew every TTL.
	Name string
	// Bucket is the name of the registry: daemons with the same bucket see each other. [A-Za-z0-9_-]{1,64}.
	Bucket string
	// Heartbeat is the time between two signs of life, 50 ms to 10 min; 0 means 2 s.
	Heartbeat time.Duration
	// TTL is how long a node is seen without a heartbeat: at least twice Heartbeat and 1 s, at most 1 h; 0 means
	// three heartbeats. It is rounded up to whole seconds, which is all that the server counts.
	TTL time.Duration
	// Logger is slog.Default when nil.
	Logger *slog.Logger
}

var bucketName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// withDefaults fills what is not set and checks the rest.
func (o Options) withDefaults() (Options, error) {
	const op = "registry connect"
	if o.Bucket == "" {
		o.Bucket = DefaultBucket
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = DefaultHeartbeat
	}
	if o.TTL == 0 {
		o.TTL = max(ttlHeartbeats*o.Heartbeat, time.Second)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if (o.URL == "") == (o.Dial == nil) {
		return o, fault.Invalid(op, "url", "exactly one of URL and Dial must be set")
	}
	if o.URL != "" {
		for one := range strings.SplitSeq(o.URL, ",") {
			// The URL may contain a password, so neither it nor the parser's error is repeated.
			u, err := url.Parse(strings.TrimSpace(one))
			if err != nil || u.Host == "" || u.Scheme != "nats" && u.Scheme != "tls" {
				return o, fault.Invalid(op, "url", "not the address of a NATS server: allowed are nats://host:port and tls://host:port, several separated by commas")
			}
		}
	}
	if o.Replicas == 0 {
		o.Replicas = 1
	}
	if o.Replicas != 1 && o.Replicas != 3 && o.Replicas != 5 {
		return o, fault.Invalid(op, "registry-replicas", "%d: allowed are 1, 3 and 5", o.Replicas)
	}
	if err := o.Access.Check(); err != nil {
		return o, err
	}
	if !bucketName.MatchString(o.Bucket) {
		return o, fault.Invalid(op, "bucket", "%.80q: allowed are 1 to 64 characters of [A-Za-z0-9_-]", o.Bucket)
	}
	if o.Heartbeat < 50*time.Millisecond || o.Heartbeat > 10*time.Minute {
		return o, fault.Invalid(op, "heartbeat", "%s: allowed are 50ms to 10m", o.Heartbeat)
	}
	if o.TTL < max(2*o.Heartbeat, time.Second) || o.TTL > time.Hour {
		return o, fault.Invalid(op, "ttl", "%s: allowed are %s to 1h", o.TTL, max(2*o.Heartbeat, time.Second))
	}
	o.TTL = (o.TTL + time.Second - 1).Truncate(time.Second)
	return o, nil
}
