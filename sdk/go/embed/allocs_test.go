package embed_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

// TestPostsAllocateNothing for a block, in client, ring, daemon and provider together. What is allowed for a post is for the pools that the
// race detector empties at random: without it a post between clients of one node allocates nothing at all. The least of some rounds
// counts, because the nodes' other goroutines allocate now and then.
func TestPostsAllocateNothing(t *testing.T) {
	a := start(t, embed.Config{Node: "a", NATSListen: "127.0.0.1:0"})
	b := start(t, embed.Config{Node: "b", Providers: []string{"tcp"}, NATS: a.Info().NATSURL})
	for _, to := range []*embed.Node{a, b} {
		var per []float64
		for _, blocks := range []int{1, 1000} {
			p := prepared(t, a, to, blocks, 64)
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
		assert.LessOrEqual(t, per[0], 40.0)
		assert.LessOrEqual(t, per[1], per[0]+40)
	}
}
