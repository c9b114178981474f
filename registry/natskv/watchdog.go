package natskv

import (
	"errors"
	"sync"

	"github.com/nats-io/nats.go"
)

// watchdog hears what the client library says beside the calls: what the server refuses, and why a connection cannot be
// made again. Without it a daemon whose credentials ran out would only say that its registry is stale.
type watchdog struct {
	opts Options

	mu      sync.Mutex
	refused error  // the latest permission that was missing
	said    string // why reconnecting fails, as last logged
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
