package natskv

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry"
)

const (
	reconnectWait   = 250 * time.Millisecond
	reconnectJitter = 250 * time.Millisecond
	// refusedAfter is how many servers in a row must have closed a connection right behind the TLS handshake before that counts as
	// a certificate that they refuse. One that goes down does the same.
	refusedAfter = 3
	// pingInterval and maxPings bound how long a server that vanished without a word goes unnoticed.
	pingInterval = 10 * time.Second
	maxPings     = 2
)

// Directory is a registry.Directory on a NATS server.
type Directory struct {
	opts   Options
	nc     *nats.Conn
	bucket *bucket
	view   *registry.View
	feed   *registry.Feed

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup
	err    chan error    // Err
	beat   chan struct{} // asks the heartbeat to come soon
	resync chan struct{} // asks the watch to start again
	fresh  freshness

	lock  chan struct{} // holds one token; owner belongs to who took it. A channel, so that waiting ends with a context.
	owner owner
	pulse pulse

	health health // the heartbeat's own

	closeOnce sync.Once
	closeErr  error
}

var _ registry.Directory = (*Directory)(nil)

// Connect reaches the server, opens the bucket and waits until the view has been filled once. It tries until ctx
// ends; then it fails with RegistryUnavailable. InvalidArgument names a wrong option. What waiting does not mend is said at
// once: PermissionDenied and ConfigInvalid name the setting (see natsaccess).
func Connect(ctx context.Context, opts Options) (*Directory, error) {
	const op = "registry connect"
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	w := newWatchdog(opts)
	nc, err := dial(ctx, w)
	if err != nil {
		return nil, unavailable(ctx, op, err)
	}
	js, err := jetstream.New(nc, jetstream.WithDefaultTimeout(requestTimeout))
	if err != nil {
		nc.Close()
		return nil, fault.Wrap(fault.Internal, op, err)
	}
	b := &bucket{js: js, name: opts.Bucket, replicas: opts.Replicas}
	err = retry(ctx, func() error {
		err := b.open(ctx)
		if denied := w.denied(); err != nil && denied != nil { // a refused request is answered beside it, by silence
			return denied
		}
		if replicasRefused(err) {
			return &fault.Error{Code: fault.ConfigInvalid, Op: op, Field: "registry-replicas", Detail: "the server is no cluster; allowed: 1", Err: err}
		}
		return err
	})
	if err != nil {
		nc.Close()
		return nil, unavailable(ctx, op, err)
	}
	d := &Directory{
		opts: opts, nc: nc, bucket: b,
		err: make(chan error, 1), beat: make(chan struct{}, 1), resync: make(chan struct{}, 1), lock: make(chan struct{}, 1),
	}
	d.fresh.made = time.Now()
	d.owner.caches = map[string]*ownCache{}
	d.owner.dropped = map[string]time.Time{}
	d.health.silent = map[string]time.Time{}
	d.view, d.feed = registry.NewView()
	d.ctx, d.cancel = context.WithCancel(context.Background())
	w.follow(d.ctx, d.view)
	d.wg.Go(d.follow)
	d.wg.Go(d.heartbeat)
	d.wg.Go(d.keepPulse)
	for {
		changed := d.view.Changed()
		if d.view.Connected() {
			return d, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			_ = d.Close(ctx)
			return nil, unavailable(ctx, op, ctx.Err())
		}
	}
}

func dial(ctx context.Context, w *watchdog) (*nats.Conn, error) {
	o := w.opts
	opts := append(o.Access.ClientOptions(o.Dial != nil),
		nats.Name(o.Name),
		nats.Timeout(requestTimeout),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait),
		nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.SetCustomDialer(w),
		// Nothing is kept for later while the server is away: an old heartbeat that arrives late is a wrong one.
		nats.ReconnectBufSize(-1),
		nats.PingInterval(pingInterval),
		nats.MaxPingsOutstanding(maxPings),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { w.asyncError(err) }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { w.reconnectError(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { w.reconnected() }),
	)
	connect := o.Dial
	if connect == nil {
		connect = func(opts ...nats.Option) (*nats.Conn, error) { return nats.Connect(o.URL, opts...) }
	}
	var nc *nats.Conn
	closed := 0
	err := retry(ctx, func() (err error) {
		nc, err = connect(opts...)
		if why := o.Access.Explain("registry connect", err); why != nil {
			return why
		}
		if !errors.Is(err, nats.ErrTLS) {
			closed = 0
		} else if closed++; closed == refusedAfter {
			return o.Access.Refused("registry connect", err)
		}
		return err
	})
	return nc, err
}

// retry calls f until it succeeds, cannot, or ctx ends; then it returns f's last error.
func retry(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil || errors.Is(err, errUnusable) || final(err) {
			return err
		}
		if !sleep(ctx, jitter(reconnectWait)) {
			return err
		}
	}
}

// final says that an error is already the caller's, and that trying again is no use.
func final(err error) bool {
	return errors.Is(err, fault.ErrPermissionDenied) || errors.Is(err, fault.ErrConfigInvalid)
}

// View is the local view.
func (d *Directory) View() *registry.View { return d.view }

// Err delivers NameTaken once, when another epoch took the announced name.
func (d *Directory) Err() <-chan error { return d.err }

// Close withdraws this node's entries, bounded by ctx, and ends. Later calls return what the first returned.
func (d *Directory) Close(ctx context.Context) error {
	d.closeOnce.Do(func() {
		d.cancel()
		d.closeErr = d.withdraw(ctx)
		d.nc.Close()
		d.wg.Wait()
	})
	return d.closeErr
}

func sleep(ctx context.Context, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// jitter spreads t by a tenth both ways, so that nodes started together do not stay in step.
func jitter(t time.Duration) time.Duration {
	return t - t/10 + rand.N(t/5+1)
}

// poke leaves a request in a channel of one place.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
