package embed

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/node"
	"github.com/kvxfer/kvxfer/internal/version"
	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// Node is a running node. Its methods may be called from any goroutine.
type Node struct {
	node    *node.Node
	client  *kvxfer.Client
	options []kvxfer.Option // of every client
	dirs    []string        // made for this node alone
	once    sync.Once
	err     error // of Close
}

// Info says where a node serves.
type Info struct {
	Node     string
	Epoch    string // of this start: 32 hex digits
	Version  string
	Socket   string // for clients
	PeerAddr string // for peers, with the port that the kernel chose
	HTTPAddr string // "": none
	NATSURL  string // of the node's own registry server where it listens; "": it does not
}

// Start runs a node and attaches a client to it. ctx bounds the start only.
//
// Errors: ConfigInvalid, a field is wrong, several are told together; AlreadyExists, another process or node uses StateDir or
// Socket; NameTaken, a live node has the name; RegistryUnavailable.
func Start(ctx context.Context, cfg Config) (_ *Node, err error) {
	n := &Node{}
	defer func() {
		if err != nil {
			err = errors.Join(typed(err), n.removeDirs())
		}
	}()
	for _, d := range []struct {
		path *string
		file string
	}{{&cfg.StateDir, "state"}, {&cfg.Socket, "kvxfer.sock"}} {
		if *d.path == "" {
			if err := n.makeDir(d.path, d.file); err != nil {
				return nil, err
			}
		}
	}
	checked, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	log := cfg.Logger
	if log == nil {
		log = slog.Default()
	}
	if n.node, err = node.Start(ctx, *checked, log); err != nil {
		return nil, err
	}
	if checked.NoEnvironment {
		n.options = append(n.options, kvxfer.WithSampling(1))
	}
	if n.client, err = n.Dial(ctx, kvxfer.WithLogger(log)); err != nil {
		now, cut := context.WithCancel(ctx)
		cut()
		n.node.Close(now)
		return nil, err
	}
	return n, nil
}

// makeDir makes a directory that only this user may enter, for a file in it.
func (n *Node) makeDir(path *string, file string) error {
	dir, err := os.MkdirTemp("", "kvxfer-")
	if err != nil {
		return fault.Wrap(fault.Internal, "start", err)
	}
	n.dirs = append(n.dirs, dir)
	*path = filepath.Join(dir, file)
	return nil
}

func (n *Node) removeDirs() error {
	var err error
	for _, d := range n.dirs {
		err = errors.Join(err, os.RemoveAll(d))
	}
	return err
}

// Client is the program's own client of the node, of the node's tenant. Close closes it.
func (n *Node) Client() *kvxfer.Client { return n.client }

// Dial attaches another client, of another tenant perhaps; the caller closes it, before the node.
func (n *Node) Dial(ctx context.Context, options ...kvxfer.Option) (*kvxfer.Client, error) {
	return kvxfer.Dial(ctx, n.node.Info().Socket, slices.Concat(n.options, options)...)
}

// Info says where the node serves.
func (n *Node) Info() Info {
	i := n.node.Info()
	return Info{Node: i.Node, Epoch: i.Epoch, Version: version.Version, Socket: i.Socket, PeerAddr: i.PeerAddr, HTTPAddr: i.HTTPAddr, NATSURL: i.NATSURL}
}

// Failed delivers an error when the node can no longer keep its promises. The program then calls Close.
func (n *Node) Failed() <-chan error { return n.node.Failed() }

// Close ends the node: it grants nothing new, waits for running transfers up to Config.DrainTimeout or until ctx ends, ends and
// fences the rest, closes the client of Client, and the node. Slices of that client's own memory must not be used any more.
// A second call waits for the first and returns its error. The error says what could not be removed or fenced.
func (n *Node) Close(ctx context.Context) error {
	n.once.Do(func() {
		n.node.Drain(ctx)
		attached := n.node.Clients()
		err := n.client.Close() // while there is somebody to say that its memory is fenced
		n.awaitDetached(ctx, attached)
		n.node.Close(ctx)
		n.err = errors.Join(err, n.removeDirs())
	})
	return n.err
}

// detachTimeout bounds the wait for the end of the program's own client, beside which others may come and go.
const detachTimeout = time.Second

// awaitDetached waits until the node has read what its client sent last, the spans among it. The socket tells nobody when
// the other end has read everything, and the node, unlike a daemon of another process, would end before that.
func (n *Node) awaitDetached(ctx context.Context, attached int) {
	ctx, cancel := context.WithTimeout(ctx, detachTimeout)
	defer cancel()
	for n.node.Clients() >= attached && ctx.Err() == nil {
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// typed makes the daemon's errors the SDK's, several of them each.
func typed(err error) error {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []error
		for _, e := range many.Unwrap() {
			all = append(all, typed(e))
		}
		return errors.Join(all...)
	}
	var own *kvxfer.Error
	if errors.As(err, &own) {
		return err
	}
	e := fault.From("start", err)
	return &kvxfer.Error{Code: e.Code.String(), Op: e.Op, Peer: e.Peer, Region: e.Region, Field: e.Field, Detail: e.Detail, Retryable: e.Retryable(), Released: true, Err: e.Err}
}
