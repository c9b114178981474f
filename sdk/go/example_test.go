package kvxfer_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
	"github.com/kvxfer/kvxfer/sdk/go/embed"
)

var layout = kvxfer.Layout{Layers: 4, KVHeads: 2, HeadDim: 8, DType: "float32", BlockTokens: 16}

// withCaches runs f with two caches of one client. A program has a daemon of its own, `kvxfer serve`, and begins with Dial.
func withCaches(f func(ctx context.Context, client *kvxfer.Client, prefill, decode *kvxfer.Cache)) {
	ctx := context.Background()
	node, err := embed.Start(ctx, embed.Config{Node: "example", Logger: slog.New(slog.DiscardHandler)})
	check(err)
	defer func() { check(node.Close(ctx)) }()
	client, err := kvxfer.Dial(ctx, node.Client().Socket(), kvxfer.WithProcess("example"))
	check(err)
	defer func() { check(client.Close()) }()
	prefill, err := client.AllocateCache(ctx, kvxfer.CacheSpec{Name: "prefill-0", Model: "smollm2@rev", Layout: layout, NumBlocks: 64})
	check(err)
	decode, err := client.AllocateCache(ctx, kvxfer.CacheSpec{Name: "decode-0", Model: "smollm2@rev", Layout: layout, NumBlocks: 64})
	check(err)
	f(ctx, client, prefill, decode)
}

func check(err error) {
	if err != nil {
		log.Panic(err)
	}
}

func compute(int) {}
func attend(int)  {}

// Decode leases blocks, prefill pushes each layer into them as soon as it is computed.
func Example() {
	withCaches(func(ctx context.Context, _ *kvxfer.Client, prefill, decode *kvxfer.Cache) {
		lease, err := decode.Lease(ctx, []int{7, 3, 12}, kvxfer.LeaseOptions{Mode: kvxfer.ModeWrite, TTL: 30 * time.Second})
		check(err)
		defer lease.Close() // committed by then, or revoked and fenced
		ticket := lease.Ticket()

		push, err := prefill.Write(ctx, []uint32{0, 1, 2}, ticket, kvxfer.Layerwise())
		check(err)
		for l := range layout.Layers {
			compute(l)
			check(push.Layer(l)) // never waits
			check(lease.WaitLayer(ctx, l))
			attend(l)
		}
		check(push.Finish([]byte("first token")))
		sent, err := push.Wait(ctx) // or <-push.Done(), push.Cancel()
		check(err)
		res, err := lease.Wait(ctx)
		check(err)
		fmt.Printf("%d blocks, %q\n", sent.Blocks, res.Notification)
	})
	// Output: 3 blocks, "first token"
}

// An owner takes its blocks back: after Revoke no byte can land in them any more.
func ExampleLease_Revoke() {
	withCaches(func(ctx context.Context, _ *kvxfer.Client, prefill, decode *kvxfer.Cache) {
		lease, err := decode.Lease(ctx, []int{1}, kvxfer.LeaseOptions{})
		check(err)
		push, err := prefill.Write(ctx, []int{0}, lease.Ticket(), kvxfer.Layerwise())
		check(err)
		check(push.Layer(0))
		check(lease.WaitLayer(ctx, 0))
		check(lease.Revoke(ctx))

		_, err = push.Wait(ctx)
		var te *kvxfer.TransferError
		if errors.As(err, &te) && te.MayHaveWritten {
			fmt.Println("compute again:", te.Blocks)
		}
		if errors.Is(err, kvxfer.ErrLeaseRevoked) {
			fmt.Println("revoked; retryable:", te.Retryable)
		}
	})
	// Output:
	// compute again: [0]
	// revoked; retryable: true
}

// A pull: the source permits reading, and what was read counts when it held its blocks throughout.
func ExampleCache_Read() {
	withCaches(func(ctx context.Context, _ *kvxfer.Client, prefill, decode *kvxfer.Cache) {
		offer, err := prefill.LeaseRead(ctx, []int{0, 1}, kvxfer.LeaseOptions{})
		check(err)
		defer offer.Close()
		pull, err := decode.Read(ctx, []int{5, 6}, offer.Ticket())
		check(err)
		res, err := pull.Wait(ctx)
		check(err)
		fmt.Println(res.Blocks, "blocks")
	})
	// Output: 2 blocks
}

// Blocks that an engine computed itself are published under keys, found by their beginning, and read from their holder.
func ExampleClient_Lookup() {
	withCaches(func(ctx context.Context, client *kvxfer.Client, prefill, decode *kvxfer.Cache) {
		keys, err := kvxfer.ChainKeys(make([]int, 3*layout.BlockTokens), layout.BlockTokens, nil)
		check(err)
		_, err = prefill.Publish(ctx, []int{0, 1, 2}, keys)
		check(err)
		found, err := client.Lookup(ctx, kvxfer.LookupRequest{Keys: keys, Like: decode, LocalOnly: true})
		check(err)
		pull, err := decode.ReadFrom(ctx, []int{8, 9, 10}, found.Holders[0], keys[:found.Prefix])
		check(err)
		_, err = pull.Wait(ctx)
		check(err)
		fmt.Println(found.Prefix, "blocks of", found.Holders[0].Cache)
	})
	// Output: 3 blocks of prefill-0
}

// One call reports everything that has ended since the last.
func ExampleClient_Completed() {
	withCaches(func(ctx context.Context, client *kvxfer.Client, prefill, decode *kvxfer.Cache) {
		lease, err := decode.Lease(ctx, []int{1}, kvxfer.LeaseOptions{})
		check(err)
		_, err = prefill.Write(ctx, []int{0}, lease.Ticket())
		check(err)
		for n := 0; n < 2; {
			<-client.CompletedReady()
			for _, e := range client.Completed() {
				check(e.Err())
				n++
			}
		}
		fmt.Println("both have ended")
	})
	// Output: both have ended
}

// A list that is moved again and again is prepared once: a post needs no ticket, no request and no allocation.
func ExamplePrepared() {
	withCaches(func(ctx context.Context, _ *kvxfer.Client, prefill, decode *kvxfer.Cache) {
		lease, err := decode.Lease(ctx, []int{7, 3, 12}, kvxfer.LeaseOptions{})
		check(err)
		defer lease.Close()

		prepared, err := prefill.PrepareWrite(ctx, []uint32{0, 1, 2}, lease.Ticket(), kvxfer.Lasting(time.Minute))
		check(err)
		defer prepared.Close() // finished by then, or cancelled
		for step := range 3 {
			compute(step)
			r, err := prepared.Run(ctx) // every byte is visible at the target
			check(err)
			fmt.Println(r.Bytes == prepared.Bytes())
		}
		_, err = prepared.Finish(ctx, []byte("done"))
		check(err)
		got, err := lease.Wait(ctx)
		check(err)
		fmt.Println(got.Blocks, string(got.Notification))
	})
	// Output:
	// true
	// true
	// true
	// 3 done
}
