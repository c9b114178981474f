package logring

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
)

// Ring is the last lines of a log. Methods may be called from any goroutine.
type Ring struct {
	mu              sync.Mutex
	lines           [][]byte // oldest first
	bytes           int
	maxLines, limit int
}

// New makes a ring of at most so many lines and bytes, both at least 1.
func New(lines, bytes int) *Ring { return &Ring{maxLines: lines, limit: bytes} }

// Write takes one line, as slog's handlers write them.
func (r *Ring) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, bytes.Clone(line))
	r.bytes += len(line)
	for len(r.lines) > r.maxLines || r.bytes > r.limit {
		r.bytes -= len(r.lines[0])
		r.lines[0] = nil
		r.lines = r.lines[1:]
	}
	return len(line), nil
}

// Text is what the ring holds, oldest first.
func (r *Ring) Text() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return bytes.Join(r.lines, nil)
}

// Handler is a handler that keeps what it gives to next.
func (r *Ring) Handler(next slog.Handler) slog.Handler {
	return both{next, slog.NewTextHandler(r, &slog.HandlerOptions{Level: slog.LevelDebug})} // next decides about levels
}

// both keeps a record and hands it on.
type both struct{ next, kept slog.Handler }

func (b both) Enabled(ctx context.Context, l slog.Level) bool { return b.next.Enabled(ctx, l) }

func (b both) Handle(ctx context.Context, rec slog.Record) error {
	return errors.Join(b.next.Handle(ctx, rec), b.kept.Handle(ctx, rec))
}

func (b both) WithAttrs(attrs []slog.Attr) slog.Handler {
	return both{b.next.WithAttrs(attrs), b.kept.WithAttrs(attrs)}
}

func (b both) WithGroup(name string) slog.Handler {
	return both{b.next.WithGroup(name), b.kept.WithGroup(name)}
}
