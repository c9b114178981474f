package natskv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
)

const (
	// requestTimeout bounds one request to the server, whatever the caller's context allows.
	requestTimeout = 3 * time.Second
	// markerTTL is how long the note of a deleted or expired key stays; it is part of the bucket's configuration,
	// which must be the same on every node, and so does not depend on Options.
	markerTTL = time.Minute
)

// errUnusable marks a bucket that retrying does not mend.
var errUnusable = errors.New("the bucket has no limit marker TTL, without which expired entries would never vanish from views")

// bucket is the key-value store, with what the client library's own type lacks: a time to live on every write.
type bucket struct {
	js   jetstream.JetStream
	kv   jetstream.KeyValue
	name string
	// replicas that the bucket has at least
	replicas int
}

// open binds to the bucket and makes it when it is missing.
func (b *bucket) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kv, err := b.js.KeyValue(ctx, b.name)
	if errors.Is(err, jetstream.ErrBucketNotFound) {
		kv, err = b.js.CreateKeyValue(ctx, jetstream.KeyValueConfig{
			Bucket:         b.name,
			Description:    "kvxfer registry: nodes and caches",
			MaxValueSize:   registry.MaxEntryBytes + 4096, // the server counts headers too
			History:        1,
			Storage:        jetstream.MemoryStorage,
			Replicas:       b.replicas,
			LimitMarkerTTL: markerTTL,
		})
		if errors.Is(err, jetstream.ErrBucketExists) { // made meanwhile by a node of another version
			kv, err = b.js.KeyValue(ctx, b.name)
		}
	}
	if err != nil {
		return err
	}
	st, err := kv.Status(ctx)
	if err != nil {
		return err
	}
	if st.LimitMarkerTTL() <= 0 {
		return errUnusable
	}
	if err := b.replicate(ctx, st); err != nil {
		return err
	}
	if b.kv == nil {
		b.kv = kv // it finds the bucket by name, so it stays good when the bucket is made anew
	}
	return nil
}

// replicate gives a bucket the replicas that it lacks. Nobody takes any away, so that nodes of different settings do not
// undo each other's.
func (b *bucket) replicate(ctx context.Context, st jetstream.KeyValueStatus) error {
	full, ok := st.(*jetstream.KeyValueBucketStatus)
	if !ok || full.StreamInfo().Config.Replicas >= b.replicas {
		return nil
	}
	c := full.StreamInfo().Config
	c.Replicas = b.replicas
	_, err := b.js.UpdateStream(ctx, c)
	return err
}

// put writes an entry; with a revision only if that is the key's latest.
func (b *bucket) put(ctx context.Context, key string, value []byte, ttl time.Duration, revision uint64) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	opts := []jetstream.PublishOpt{jetstream.WithMsgTTL(ttl)}
	if revision != 0 {
		opts = append(opts, jetstream.WithExpectLastSequencePerSubject(revision))
	}
	ack, err := b.js.PublishMsg(ctx, &nats.Msg{Subject: "$KV." + b.name + "." + key, Data: value}, opts...)
	if err != nil {
		return 0, err
	}
	return ack.Sequence, nil
}

// create writes an entry where there is none.
func (b *bucket) create(ctx context.Context, key string, value []byte, ttl time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return b.kv.Create(ctx, key, value, jetstream.KeyTTL(ttl))
}

// latest reads an entry from the server that leads the bucket: any other may be a little behind, and what follows from this
// answer cannot be taken back. ErrKeyNotFound where there is none, or only the note that there was one.
func (b *bucket) latest(ctx context.Context, key string) (value []byte, revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	ask, err := json.Marshal(map[string]string{"last_by_subj": "$KV." + b.name + "." + key})
	if err != nil {
		return nil, 0, err
	}
	answer, err := b.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET.KV_"+b.name, ask)
	if err != nil {
		return nil, 0, err
	}
	var a struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Seq  uint64 `json:"seq"`
			Hdrs []byte `json:"hdrs"`
			Data []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(answer.Data, &a); err != nil {
		return nil, 0, err
	}
	if a.Error != nil {
		if a.Error.ErrorCode == jetstream.JSErrCodeMessageNotFound {
			return nil, 0, jetstream.ErrKeyNotFound
		}
		return nil, 0, a.Error
	}
	if bytes.Contains(a.Message.Hdrs, []byte("KV-Operation:")) || bytes.Contains(a.Message.Hdrs, []byte("Nats-Marker-Reason:")) {
		return nil, 0, jetstream.ErrKeyNotFound
	}
	return a.Message.Data, a.Message.Seq, nil
}

// get reads an entry from any server that keeps the bucket.
func (b *bucket) get(ctx context.Context, key string) (jetstream.KeyValueEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return b.kv.Get(ctx, key)
}

// remove deletes an entry; with a revision only if that is the key's latest.
func (b *bucket) remove(ctx context.Context, key string, revision uint64) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	opts := []jetstream.KVDeleteOpt{jetstream.PurgeTTL(markerTTL)}
	if revision != 0 {
		opts = append(opts, jetstream.LastRevision(revision))
	}
	return b.kv.Purge(ctx, key, opts...)
}

// isConflict says that a key's latest revision is not the expected one, or that a key to be created exists.
func isConflict(err error) bool {
	var e *jetstream.APIError
	return errors.Is(err, jetstream.ErrKeyExists) || errors.As(err, &e) &&
		(e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || e.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
}

// isBucketMissing says that nobody serves the bucket.
func isBucketMissing(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrStreamNotFound) ||
		errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, nats.ErrNoResponders)
}

// replicasRefused says that the server is no cluster, which no waiting changes.
func replicasRefused(err error) bool {
	const notClustered = 10074 // the client library has no name for it
	var e *jetstream.APIError
	return errors.As(err, &e) && e.ErrorCode == notClustered
}

// unavailable types a failure of the server or of the way to it.
func unavailable(ctx context.Context, op string, err error) error {
	if final(err) {
		return err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return &fault.Error{Code: fault.Cancelled, Op: op, Err: err}
	}
	return &fault.Error{Code: fault.RegistryUnavailable, Op: op, Err: err, NoRetry: errors.Is(err, errUnusable)}
}
