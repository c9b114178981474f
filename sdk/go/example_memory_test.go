package kvxfer_test

import (
	"context"
	"errors"
	"fmt"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// Two requests with the same beginning have the same keys as far as whole blocks agree.
func ExampleChainKeys() {
	a, err := kvxfer.ChainKeys([]int{1, 2, 3, 4, 5, 6}, 2, []byte("tenant a"))
	if err != nil {
		panic(err)
	}
	b, err := kvxfer.ChainKeys([]int64{1, 2, 3, 4, 9, 9, 7}, 2, []byte("tenant a"))
	if err != nil {
		panic(err)
	}
	for i := range a {
		fmt.Println(i, string(a[i]) == string(b[i]))
	}
	// Output:
	// 0 true
	// 1 true
	// 2 false
}

// A view of memory that is a cache's, or is laid out like one.
func ExampleLayerOf() {
	layout := kvxfer.Layout{Layers: 1, KVHeads: 2, HeadDim: 3, DType: "int8", BlockTokens: 4, Order: kvxfer.NHD}
	memory := make([]byte, 5*layout.BlockBytes())
	v, err := kvxfer.LayerOf[int8](memory, layout, 5, 0)
	if err != nil {
		panic(err)
	}
	v.At(kvxfer.PlaneV, 2, 1, 3)[0] = 7 // V of block 2, head 1, token 3
	fmt.Println(v.Shape(), v.Strides())
	// What is stored through one view is in all of them.
	fmt.Println(v.Block(kvxfer.PlaneV, 2))
	// Output:
	// [2 5 4 2 3] [120 24 6 3 1]
	// [0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 7 0 0]
}

// What a caller asks of an error.
func ExampleError() {
	_, err := kvxfer.ContextWithTraceparent(context.Background(), "none")
	fmt.Println(errors.Is(err, kvxfer.ErrInvalidArgument), errors.Is(err, kvxfer.ErrRequest), errors.Is(err, kvxfer.ErrTransfer))
	var e *kvxfer.Error
	if errors.As(err, &e) {
		fmt.Println(e.Field, e.Retryable, e.MayHaveWritten)
	}
	// Output:
	// true true false
	// traceparent false false
}
