package xfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/rdma"
)

// Posting is how one thread of the node runs a client's posts: a ring's, or its socket's. Post, Progress and Rest are for
// one goroutine.
type Posting struct {
	e        *Engine
	client   ClientID
	done     func(wire.Posted)
	known    map[uint64]*posts
	attached []rdma.Progressor
}

// Poster runs the posts of one client; see Posting.
type Poster interface {
	Post(x wire.Post)
	Progress() int
	Rest()
}

// NewPosting makes a Posting. done is told of each post's end, once, from any goroutine, also from inside Post and Progress; it
// must not block or call back.
func (e *Engine) NewPosting(id ClientID, done func(wire.Posted)) Poster {
	return &Posting{e: e, client: id, done: done, known: map[uint64]*posts{}}
}

// maxKnown bounds what a Posting remembers of lists that have ended.
const maxKnown = 1024

// Post runs a post. It returns when it has ended or has been given to the provider.
func (g *Posting) Post(x wire.Post) {
	if code := x.Check(); code != 0 {
		g.done(wire.Posted{Cookie: x.Cookie, Code: uint32(code)})
		return
	}
	s := g.known[x.Prepared]
	if s == nil {
		p := g.e.own(g.client, x.Prepared)
		if p == nil || p.posts == nil {
			g.done(wire.Posted{Cookie: x.Cookie, Code: uint32(fault.NotFound)})
			return
		}
		if len(g.known) == maxKnown {
			clear(g.known)
		}
		s = p.posts
		g.known[x.Prepared] = s
	}
	if len(g.attached) > 0 && s.holdsUp() {
		g.Rest() // else nobody would look for completions meanwhile, others' neither
	}
	if !s.begin(g, x, g.e.o.Clock.Now()) && s.progress != nil {
		g.attach(s.progress)
	}
}

// attach leaves a session's completions to Progress until Rest. The first ones may have come by themselves.
func (g *Posting) attach(p rdma.Progressor) {
	for _, a := range g.attached {
		if a == p {
			return
		}
	}
	p.Attach()
	g.attached = append(g.attached, p)
}

// Progress looks once for completions of what was posted and returns how many there were.
func (g *Posting) Progress() (n int) {
	for _, p := range g.attached {
		n += p.Progress()
	}
	return n
}

// Rest lets completions come by themselves again: the goroutine will sleep.
func (g *Posting) Rest() {
	for _, p := range g.attached {
		p.Detach()
	}
	g.attached = g.attached[:0]
}
