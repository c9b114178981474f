package peerlink

import (
	"errors"
	"log/slog"
	"sync"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// maxStrangers bounds how many incarnations are remembered; their names are the other side's word.
const maxStrangers = 1024

// strangers are the incarnations that have nothing in common with this build. Every request for such a peer dials it
// again and fails in the same way, which is said in the log once: both sides' operators are to see it, in a fleet that is
// upgraded for hours, and not to lose sight of all else.
type strangers struct {
	mu   sync.Mutex
	seen map[[2]string]struct{}
}

// level is that of the log line about a hello with that incarnation which failed with err.
func (s *strangers) level(node, epoch string, err error) slog.Level {
	if !errors.Is(err, fault.ErrVersionMismatch) && !errors.Is(err, fault.ErrFeatureRequired) {
		return slog.LevelInfo
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := [2]string{node, epoch}
	if _, ok := s.seen[key]; ok {
		return slog.LevelDebug
	}
	if s.seen == nil || len(s.seen) >= maxStrangers {
		s.seen = map[[2]string]struct{}{}
	}
	s.seen[key] = struct{}{}
	return slog.LevelWarn
}
