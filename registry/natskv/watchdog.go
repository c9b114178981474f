package natskv

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvxfer/kvxfer/registry"
)

// spreadPerNode is the time that reconnections are spread over, for each node that is known: when a server is lost, all its nodes
// come to the others at once, and each wants to be shown the whole bucket. At most maxSpread.
const (
	spreadPerNode = 5 * time.Millisecond
	maxSpread     = 5 * time.Second
)

// watchdog is beside the client library's connection: it hears what the library says beside the calls (what the server refuses,
// and why a connection cannot be made again), without which a daemon whose credentials ran out would only say that its
// registry is stale; and it dials, so that not everybody does at once.
type watchdog struct {
	opts   Options
	dialer net.Dialer

	mu      sync.Mutex
	ctx     context.Context // ends the waits; the background until follow
	view    *registry.View  // nil until follow: a first connection waits for nobody
	refused error           // the latest permission that was missing
	said    string          // why reconnecting fails, as last logged
}

func newWatchdog(opts Options) *watchdog {
	return &watchdog{opts: opts, dialer: net.Dialer{Timeout: requestTimeout}, ctx: context.Background()}
}

// follow makes dialing wait, from now on, in proportion to the nodes of the view; ctx ends the waiting.
func (w *watchdog) follow(ctx context.Context, view *registry.View) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ctx, w.view = ctx, view
}

// Dial implements nats.CustomDialer.
func (w *watchdog) Dial(network, address string) (net.Conn, error) {
	w.mu.Lock()
	ctx, view := w.ctx, w.view
	w.mu.Unlock()
	if view != nil && !sleep(ctx, rand.N(spread(len(view.Nodes()))+1)) {
		return nil, ctx.Err()
	}
	return w.dialer.DialContext(ctx, network, address)
}

// spread is the time that the reconnections of so many nodes are spread over.
func spread(nodes int) time.Duration {
	return min(time.Duration(max(nodes-1, 0))*spreadPerNode, maxSpread)
}

func (w *watchdog) asyncError(err error) {
	w.opts.Logger.Debug("registry connection reported an error", "error", err)
	if errors.Is(err, nats.ErrPermissionViolation) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.refused = w.opts.Access.Explain("registry connect", err)
	}
}

// denied is the typed error about the latest permission that was missing, nil if none was.
func (w *watchdog) denied() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.refused
}

// reconnectError logs what waiting does not mend, once an outage.
func (w *watchdog) reconnectError(err error) {
	why := w.opts.Access.Explain("registry reconnect", err)
	if why == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if why.Error() != w.said {
		w.said = why.Error()
		w.opts.Logger.Error("registry refuses this node", "error", why)
	}
}

func (w *watchdog) reconnected() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = ""
}
