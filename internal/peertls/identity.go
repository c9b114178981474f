package peertls

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is the least time between two looks at the files.
const lookEvery = time.Second

// Identity is who a node is to its peers and whom it believes. Methods may be called from any goroutine.
type Identity struct {
	files Files
	node  string
	log   *slog.Logger
	now   func() time.Time
	every time.Duration

	set atomic.Pointer[set]

	mu     sync.Mutex // held by whoever looks at the files; nobody waits for it
	looked time.Time
	taken  stamps // of the set in use
	broken stamps // of a set that was refused and logged
}

// Load reads the files of a node. It fails with ConfigInvalid that names the setting, the file and what is allowed; a whole set
// outside its time is used, with a warning. log gets what happens to later sets.
func Load(files Files, node string, log *slog.Logger) (*Identity, error) {
	i := &Identity{files: files, node: node, log: log, now: time.Now, every: lookEvery}
	i.taken, i.looked = files.stat(), i.now()
	s, expired, err := files.read(node, i.looked)
	if err != nil {
		return nil, err
	}
	if expired != nil {
		log.Warn("the node's certificate is outside its time: peers will refuse it", "file", files.Cert, "error", expired)
	}
	i.take(s)
	return i, nil
}

func (i *Identity) take(s *set) {
	i.set.Store(s)
	i.log.Info("certificates loaded", "file", i.files.Cert, "names", names(s.cert.Leaf), "not_after", s.cert.Leaf.NotAfter.UTC().Format(time.RFC3339))
}

// current gives the set for a handshake that begins now. While one goroutine reads changed files the others go on with the
// former set: a slow disk does not hold up handshakes.
func (i *Identity) current() *set {
	if i.mu.TryLock() {
		if now := i.now(); now.Sub(i.looked) >= i.every {
			i.looked = now
			i.look(now)
		}
		i.mu.Unlock()
	}
	return i.set.Load()
}

// look takes a new set if there is a whole one. i.mu is held.
func (i *Identity) look(now time.Time) {
	found := i.files.stat()
	if found == i.taken {
		return
	}
	s, expired, err := i.files.read(i.node, now)
	if err == nil {
		err = expired
	}
	if err == nil && i.files.stat() != found {
		return // they are being replaced at this moment: the next look finds more
	}
	if err != nil {
		// It is tried again at the next look, since a set may only be too early, but said once.
		if found != i.broken {
			i.broken = found
			i.log.Error("the new certificates are not used: the former ones stay", "error", err)
		}
		return
	}
	i.taken, i.broken = found, stamps{}
	i.take(s)
}
