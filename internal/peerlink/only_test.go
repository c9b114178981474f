package peerlink

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// A dial that names a provider gets a link over it, shared where there is one, or an error that names it and says why not.
func TestOnlyTheNamedProvider(t *testing.T) {
	nearA := newFabric("near")
	var broken atomic.Bool
	var tries atomic.Int32
	nearA.connect = func(context.Context) error {
		tries.Add(1)
		if broken.Load() {
			return errNoSocket
		}
		return nil
	}
	a := newNode(t, "a", epochA, twoFabrics(nearA))
	b := newNode(t, "b", epochB, twoFabrics(newFabric("near")))
	ref := b.ref()
	best := dial(t, a, ref)
	near, tcp := ref, ref
	near.Provider, tcp.Provider = "near", "tcp"
	assert.Same(t, best, dial(t, a, near), "the link that is there uses it already")
	other := dial(t, a, tcp)
	assert.NotSame(t, best, other)
	name, reason := other.Provider()
	assert.Equal(t, "tcp", name)
	assert.Equal(t, "tcp: the only one that was allowed", reason)
	assert.Same(t, other, dial(t, a, tcp))
	assert.Same(t, best, dial(t, a, ref), "who names none keeps the best")

	best.Close(nil)
	eventually(t, "the link to go", func() bool { return a.h.reason(best) != nil })
	broken.Store(true)
	e := dialFails(t, a, near, fault.ErrPeerUnreachable)
	assert.Equal(t, "provider", e.Field)
	assert.Equal(t, `provider "near" alone was allowed, and is not usable: connect /state/near.sock: no such file or directory`, e.Detail)
	before := tries.Load()
	name, _ = dial(t, a, ref).Provider()
	assert.Equal(t, "tcp", name, "for others the next one is taken")
	assert.Same(t, other, dial(t, a, tcp))
	dialFails(t, a, near, fault.ErrPeerUnreachable)
	assert.Greater(t, tries.Load(), before+1, "who names it has it tried, whatever was learned")

	none := ref
	none.Provider = "far"
	e = dialFails(t, a, none, fault.ErrNotSupported)
	assert.Equal(t, "provider", e.Field)
	assert.Contains(t, e.Detail, `"far", this node has ["near" "tcp"]`)

	c := newNode(t, "c", epochA)
	lacks := c.ref()
	lacks.Provider = "near"
	e = dialFails(t, a, lacks, fault.ErrNotSupported)
	assert.Equal(t, "provider", e.Field)
	assert.Contains(t, e.Detail, `this node ["tcp"]`)

	port := listen(t, "127.0.0.1:0")
	gone := ref
	gone.Node, gone.Addr, gone.Provider = "gone", port.Addr().String(), "tcp"
	_ = port.Close()
	e = dialFails(t, a, gone, fault.ErrPeerUnreachable)
	assert.Empty(t, e.Field, "the provider has no part in it")
}
