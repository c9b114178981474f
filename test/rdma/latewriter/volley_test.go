package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

// patience bounds the waits, which end as soon as their condition holds.
const patience = 60 * time.Second

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// program is one latewriter with its conductor's ends.
type program struct {
	t      *testing.T
	in     io.WriteCloser
	done   chan error
	mu     sync.Mutex
	next   uint64
	answer map[uint64]chan map[string]json.RawMessage
	late   []late
}

func start(t *testing.T, args ...string) *program {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	p := &program{t: t, in: inW, done: make(chan error, 1), answer: map[uint64]chan map[string]json.RawMessage{}}
	ready := make(chan struct{})
	go func() {
		p.done <- run(args, inR, outW)
		_ = outW.Close()
	}()
	go func() {
		for lines := bufio.NewScanner(outR); lines.Scan(); {
			var m map[string]json.RawMessage
			if assert.NoError(t, json.Unmarshal(lines.Bytes(), &m)) {
				p.hear(m, lines.Bytes(), ready)
			}
		}
	}()
	select {
	case <-ready:
	case err := <-p.done:
		require.NoError(t, err)
	case <-time.After(patience):
		require.Fail(t, "not ready")
	}
	t.Cleanup(func() {
		_ = inW.Close()
		assert.NoError(t, <-p.done)
	})
	return p
}

func (p *program) hear(m map[string]json.RawMessage, line []byte, ready chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch event := string(m["event"]); event {
	case `"ready"`:
		close(ready)
	case `"late"`:
		var l late
		assert.NoError(p.t, json.Unmarshal(line, &l))
		p.late = append(p.late, l)
	default:
		var id uint64
		assert.NoError(p.t, json.Unmarshal(m["id"], &id))
		p.answer[id] <- m
	}
}

// ask makes a request and decodes its answer into v; it returns the error that was answered.
func (p *program) ask(do string, args, v any) error {
	raw, err := json.Marshal(args)
	require.NoError(p.t, err)
	p.mu.Lock()
	p.next++
	r, ch := request{ID: p.next, Do: do, Args: raw}, make(chan map[string]json.RawMessage, 1)
	p.answer[r.ID] = ch
	p.mu.Unlock()
	require.NoError(p.t, json.NewEncoder(p.in).Encode(r))
	select {
	case m := <-ch:
		if e := m["error"]; e != nil {
			return fmt.Errorf("%s", e)
		}
		if v != nil {
			require.NoError(p.t, json.Unmarshal(m["ok"], v))
		}
		return nil
	case <-time.After(patience):
		require.Fail(p.t, "no answer", do)
		return nil
	}
}

func (p *program) must(do string, args, v any) {
	p.t.Helper()
	require.NoError(p.t, p.ask(do, args, v), do)
}

func startNode(t *testing.T, name string) string {
	dir, err := os.MkdirTemp("", "kvx") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	n, err := embed.Start(context.Background(), embed.Config{Node: name, Socket: socket, Providers: []string{"tcp"}, DrainTimeout: time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = n.Close(context.Background()) })
	return socket
}

// TestVolley plays what the conductor plays, between two nodes of this process.
func TestVolley(t *testing.T) {
	far, near := startNode(t, "far"), startNode(t, "near")
	source := start(t, "source", "--socket", far, "--units", "32")
	owner := start(t, "owner", "--socket", near, "--units", "32")
	units := func(first, n int) (out []int) {
		for i := range n {
			out = append(out, first+i)
		}
		return out
	}
	ms := int(patience.Milliseconds())
	kept := []victimArgs{
		{ID: 1, Kind: "push", Way: "keep", Units: units(0, 4), From: []int{3, 2, 1, 0}, TTL: ms, Mark: 129},
		{ID: 2, Kind: "raw", Way: "keep", Units: units(0, 4), From: units(7, 4), TTL: ms, Mark: 129},
		{ID: 3, Kind: "pull", Way: "keep", Units: units(4, 4), From: units(20, 4), TTL: ms, Mark: 129},
	}
	taken := []victimArgs{
		{ID: 4, Kind: "push", Way: "revoke", Units: units(8, 4), From: units(0, 4), TTL: ms, Mark: 129},
		{ID: 5, Kind: "push", Way: "renew, revoke", Units: units(12, 4), From: units(4, 4), TTL: ms, Mark: 129},
		{ID: 6, Kind: "push", Way: "evict", Units: units(16, 4), From: units(8, 4), TTL: ms, Mark: 129},
		{ID: 7, Kind: "raw", Way: "shorten", Units: units(8, 4), From: units(8, 4), TTL: ms, Mark: 129},
		{ID: 8, Kind: "push", Way: "cancel", Units: units(20, 4), From: units(8, 4), TTL: ms, Mark: 129},
		{ID: 9, Kind: "push", Way: "ttl", Units: units(24, 4), From: units(8, 4), TTL: 50, Mark: 129},
	}
	granted := append([]victimArgs{kept[0], kept[1]}, taken...)
	var tickets, offers []ticket
	owner.must("open", granted, &tickets)
	source.must("offer", kept[2:], &offers)
	kept[2].Ticket = offers[0].Ticket
	var pushes []pushArgs
	for i, v := range granted {
		require.Equal(t, v.ID, tickets[i].ID)
		v.Ticket = tickets[i].Ticket
		if v.Way == "keep" {
			v.TTL = ms
			pushes = append(pushes, pushArgs{victimArgs: v, Only: "tcp"})
		} else { // never finished, so never committed
			v.TTL = ms
			pushes = append(pushes, pushArgs{victimArgs: v, Open: true})
		}
	}
	owner.must("read", kept[2:], nil)
	source.must("push", pushes, nil)
	var begun bool
	owner.must("begun", waitArgs{IDs: []int{4}, MS: ms}, &begun)
	assert.True(t, begun)
	source.must("cancel", waitArgs{IDs: []int{8}}, nil)
	owner.must("take", []map[string]int{{"id": 4}, {"id": 5, "after": 2}, {"id": 6}, {"id": 7}}, nil)
	var ends, far2 []ending
	owner.must("wait", waitArgs{IDs: []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, MS: ms}, &ends)
	source.must("wait", waitArgs{IDs: []int{1, 2, 3, 4, 5, 6, 7, 8, 9}, MS: ms}, &far2)
	want := []string{"good", "good", "good", "LeaseRevoked", "LeaseRevoked", "LeaseRevoked", "", "Cancelled", "LeaseExpired"}
	for i, e := range ends {
		assert.Zero(t, e.Wrong, "%+v", e)
		if want[i] != "" { // a raw write may be done before its time is shortened
			assert.Equal(t, want[i], e.End, "%+v", e)
		}
	}
	assert.Equal(t, "tcp", ends[0].By)
	owner.must("look", waitArgs{}, nil)
	owner.must("idle", waitArgs{MS: ms}, nil)
	source.must("idle", waitArgs{MS: ms}, nil)
	owner.mu.Lock()
	defer owner.mu.Unlock()
	assert.Empty(t, owner.late)
}

// TestKilledOwner: memory whose owner's connection ends is free when the daemon lets it go.
func TestKilledOwner(t *testing.T) {
	near := startNode(t, "near")
	holder := start(t, "memory", "--units", "8")
	var at string
	holder.must("where", nil, &at)
	require.True(t, strings.HasPrefix(at, "/proc/"), at)
	owner := start(t, "owner", "--socket", near, "--units", "8", "--memory", at, "--name", "dying")
	holder.must("give", victimArgs{Units: []int{1, 2}}, nil)
	var tickets []ticket
	owner.must("open", []victimArgs{{ID: 1, Kind: "push", Way: "revoke", Units: []int{1, 2}, TTL: 60000}}, &tickets)
	assert.NotEmpty(t, tickets[0].Ticket)
	assert.ErrorContains(t, holder.ask("let go", map[string]any{"pid": os.Getpid(), "ms": 1, "units": []int{1, 2}, "mark": 130}, nil), "still maps")
	owner.must("take", []map[string]int{{"id": 1}}, nil)
	assert.ErrorContains(t, holder.ask("dance", nil, nil), "no request of this role")
}

func TestRolesAreNamed(t *testing.T) {
	for _, args := range [][]string{nil, {"juggler", "--socket", startNode(t, "near")}} {
		assert.ErrorContains(t, run(args, strings.NewReader(""), io.Discard), "owner, source, memory")
	}
}
