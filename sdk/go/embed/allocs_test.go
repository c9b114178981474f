package embed_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

// TestPostsAllocateNothing in client, ring, daemon and provider together: of two clients of a node nothing, between two nodes over tcp
// nothing for a block. The least of some rounds counts, because the nodes' other goroutines allocate now and then.
func TestPostsAllocateNothing(t *testing.T) {
	a := start(t, embed.Config{Node: "a", NATSListen: "127.0.0.1:0"})
	b := start(t, embed.Config{Node: "b", Providers: []string{"tcp"}, NATS: a.Info().NATSURL})
	for _, to := range []*embed.Node{a, b} {
		var per []float64
		for _, blocks := range []int{1, 1000} {
			p := prepared(t, a, to, blocks)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			post := func() {
				if _, err := p.Run(ctx); err != nil {
					t.Fatal(err)
				}
			}
			post()
			least := testing.AllocsPerRun(20, post)
			for range 9 {
				least = min(least, testing.AllocsPerRun(20, post))
			}
			per = append(per, least)
			require.NoError(t, p.Close())
		}
		t.Logf("to %s: %v", to.Info().Node, per)
		if to == a {
			assert.LessOrEqual(t, per[1], 1.0)
		} else {
			assert.LessOrEqual(t, per[1], per[0]+40)
		}
	}
}

// prepared is a list of scattered blocks of 64 bytes from a client of one node to a client of another or of the same.
func prepared(t *testing.T, from, to *embed.Node, blocks int) *kvxfer.Prepared {
	regions := make([]*kvxfer.Region, 2)
	for i, n := range []*embed.Node{from, to} {
		c, err := kvxfer.Dial(t.Context(), n.Info().Socket, kvxfer.WithLogger(quiet))
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		regions[i], err = c.AllocateRegion(t.Context(), "r", 128*blocks)
		require.NoError(t, err)
	}
	adv, err := regions[1].Advertise(t.Context(), kvxfer.AdvertiseOptions{TTL: time.Hour})
	require.NoError(t, err)
	list := make([]kvxfer.Range, blocks)
	for i := range list {
		list[i] = kvxfer.Range{Local: int64(128 * i), Remote: int64(128 * (blocks - 1 - i)), Length: 64}
	}
	p, err := regions[0].PrepareWrite(t.Context(), list, adv.Ticket(), kvxfer.Lasting(time.Hour))
	require.NoError(t, err)
	return p
}
