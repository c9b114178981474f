package embed_test

import (
	"context"
	"fmt"
	"log/slog"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

// Two nodes in one program: one pushes a block of its cache into the other's.
func Example() {
	ctx := context.Background()
	layout := kvxfer.Layout{Layers: 2, KVHeads: 1, HeadDim: 4, DType: "float32", BlockTokens: 2}
	var caches []*kvxfer.Cache
	for _, name := range []string{"prefill", "decode"} {
		node, err := embed.Start(ctx, embed.Config{Node: name, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			panic(err)
		}
		defer node.Close(ctx)
		cache, err := node.Client().AllocateCache(ctx, kvxfer.CacheSpec{Name: name, Model: "m", Layout: layout, NumBlocks: 8})
		if err != nil {
			panic(err)
		}
		caches = append(caches, cache)
	}
	prefill, decode := caches[0], caches[1]

	lease, err := decode.Lease(ctx, []int{5}, kvxfer.LeaseOptions{Mode: kvxfer.ModeWrite})
	if err != nil {
		panic(err)
	}
	keys, err := kvxfer.Layer[float32](prefill, 1)
	if err != nil {
		panic(err)
	}
	keys.At(kvxfer.PlaneK, 3, 0, 0)[0] = 42

	push, err := prefill.Write(ctx, []int{3}, lease.Ticket())
	if err != nil {
		panic(err)
	}
	if _, err := push.Wait(ctx); err != nil {
		panic(err)
	}
	if _, err := lease.Wait(ctx); err != nil {
		panic(err)
	}
	arrived, err := kvxfer.Layer[float32](decode, 1)
	if err != nil {
		panic(err)
	}
	fmt.Println(arrived.At(kvxfer.PlaneK, 5, 0, 0)[0])
	// Output: 42
}
