package peerlink

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// A dialer takes a session that ends for a link that is lost. So it must have had the time to read DONE before.
func TestLastWordsBeforeTheSessionGoes(t *testing.T) {
	b := newNode(t, "b", epochB, never)
	c, l := rawLink(t, b, 0)
	require.NoError(t, l.Send(wire.Frame{Kind: wire.KindDone}))
	began := time.Now()
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ended <- b.Close(ctx)
	}()
	require.Equal(t, wire.KindDone, receive(t, c).Kind)
	require.Equal(t, wire.KindError, receive(t, c).Kind)
	targets, _ := b.fab.open()
	if time.Since(began) < linger { // later the node may have given up on a peer that keeps the connection
		assert.Equal(t, 1, targets, "the session is there while the peer reads")
	}
	require.NoError(t, c.Close())
	require.NoError(t, <-ended)
	targets, _ = b.fab.open()
	assert.Zero(t, targets)
}
