package registry

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestToldFollowsTheNode(t *testing.T) {
	v, f := NewView()
	n := Node{Format: Format, Name: "n", Epoch: "00112233445566778899aabbccddeeff", PeerAddr: "a:1", Protocol: Protocol{1, 1}}
	raw, err := n.Encode()
	require.NoError(t, err)
	key := n.Key().String()
	at := time.Unix(100, 0)
	f.Told(key, at)
	_, ok := v.Told("n")
	assert.False(t, ok, "an entry that could not be taken is no node")
	require.NoError(t, f.Put(key, raw))
	f.Told(key, at)
	f.Told("garbage", at)
	got, ok := v.Told("n")
	assert.True(t, ok)
	assert.Equal(t, at, got)
	for _, tenant := range []string{"b", "a", "b"} {
		c := Cache{Format: Format, Node: "n", Epoch: n.Epoch, Tenant: tenant, Name: "c" + tenant}
		raw, err := c.Encode()
		require.NoError(t, err)
		require.NoError(t, f.Put(c.Key().String(), raw))
	}
	assert.Equal(t, []string{"a", "b"}, v.Tenants())
	f.Drop(key)
	_, ok = v.Told("n")
	assert.False(t, ok)
	assert.Empty(t, v.Tenants())
}
