package kvxfer

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestWrongArguments: each is refused here, and the error names the field and what is allowed.
func TestWrongArguments(t *testing.T) {
	d := startFake(t)
	c, cache := d.attach()
	region, err := c.AllocateRegion(within(t), "raw", 100)
	require.NoError(t, err)
	push, err := cache.Write(within(t), []int{1, 2}, "t")
	require.NoError(t, err)
	layered, err := cache.Write(within(t), []int{1, 2}, "t", Layerwise())
	require.NoError(t, err)
	ctx := within(t)
	key := []byte("0123456789abcdef")
	spec := CacheSpec{Name: "x", Model: "m", Layout: testLayout, NumBlocks: 1}
	with := func(change func(*CacheSpec)) error {
		s := spec
		change(&s)
		_, err := c.AllocateCache(ctx, s)
		return err
	}
	lease := func(blocks Blocks, o LeaseOptions) error { _, err := cache.Lease(ctx, blocks, o); return err }
	write := func(o ...TransferOption) error { _, err := cache.Write(ctx, []int{1}, "t", o...); return err }
	writev := func(r ...Range) error { _, err := region.Writev(ctx, r, "t"); return err }
	advertise := func(o AdvertiseOptions) error { _, err := region.Advertise(ctx, o); return err }
	one := func(_ any, err error) error { return err }
	for i, x := range []struct {
		field string
		err   error
	}{
		{"name", with(func(s *CacheSpec) { s.Name = "a b" })},
		{"model", with(func(s *CacheSpec) { s.Model = "" })},
		{"revision", with(func(s *CacheSpec) { s.Revision = strings.Repeat("x", 1025) })},
		{"compat", with(func(s *CacheSpec) { s.Compat = strings.Repeat("x", 1025) })},
		{"layout.layers", with(func(s *CacheSpec) { s.Layout.Layers = 0 })},
		{"num_blocks", with(func(s *CacheSpec) { s.NumBlocks = 0 })},
		{"instance", with(func(s *CacheSpec) { s.InstanceKey = key })},
		{"instance_key", with(func(s *CacheSpec) { s.Instance = "i" })},
		{"size", one(c.AllocateRegion(ctx, "y", 0))},
		{"name", one(c.AllocateRegion(ctx, "", 1))},
		{"blocks", lease([]int{8}, LeaseOptions{})},
		{"blocks", lease([]int{1, 1}, LeaseOptions{})},
		{"blocks", lease([]string{"1"}, LeaseOptions{})},
		{"blocks", lease([]int{}, LeaseOptions{})},
		{"mode", lease([]int{1}, LeaseOptions{Mode: ModeRead})},
		{"ttl", lease([]int{1}, LeaseOptions{TTL: 25 * time.Hour})},
		{"readers", lease([]int{1}, LeaseOptions{Readers: 2})},
		{"readers", one(cache.LeaseRead(ctx, []int{1}, LeaseOptions{Readers: 65536}))},
		{"mode", one(cache.LeaseRead(ctx, []int{1}, LeaseOptions{Mode: ModeWrite}))},
		{"instance", one(c.LeaseInstance(ctx, "", key, []int{1}, LeaseOptions{}))},
		{"instance_key", one(c.LeaseInstance(ctx, "i", key[:15], []int{1}, LeaseOptions{}))},
		{"lease_id", one(cache.Granted(ctx, "ABC"))},
		{"transfer_id", write(TransferID("xyz"))},
		{"attempt", write(Attempt(0))},
		{"instance", write(OfInstance("a b"))},
		{"provider", write(OnlyProvider("a b"))},
		{"notification", write(Notify(make([]byte, 65537)))},
		{"notification", write(Layerwise(), Notify([]byte("x")))},
		{"keys", one(cache.ReadFrom(ctx, []int{1, 2}, Holder{}, [][]byte{key}))},
		{"keys", one(cache.Publish(ctx, []int{1, 2}, [][]byte{key}))},
		{"keys", one(c.Lookup(ctx, LookupRequest{Like: cache}))},
		{"like", one(c.Lookup(ctx, LookupRequest{Keys: [][]byte{key}, Like: cache, Model: "m"}))},
		{"model", one(c.Lookup(ctx, LookupRequest{Keys: [][]byte{key}, Layout: testLayout}))},
		{"ranges", writev(Range{99, 0, 2})},
		{"ranges", writev(Range{0, 0, 0})},
		{"ranges", writev(Range{-1, 0, 1})},
		{"ranges", writev(Range{0, MaxRegion, 1})},
		{"mode", advertise(AdvertiseOptions{Mode: "x"})},
		{"uses", advertise(AdvertiseOptions{Uses: -1})},
		{"parts", advertise(AdvertiseOptions{Parts: []Part{}})},
		{"parts", advertise(AdvertiseOptions{Parts: []Part{{50, 51}}})},
		{"layerwise", push.Layer(0)},
		{"layer", layered.Layer(3)},
		{"first", layered.LayerPart(0, 2, 0)},
		{"count", layered.LayerPart(0, 1, 2)},
		{"tenant", one(Dial(ctx, d.socket, WithTenant("")))},
		{"timeout", one(Dial(ctx, d.socket, WithTimeout(0)))},
	} {
		if assert.ErrorIs(t, x.err, ErrInvalidArgument, "%d: %s", i, x.field) {
			te := asTransferError(t, x.err)
			assert.Equal(t, x.field, te.Field, "%d: %v", i, x.err)
			assert.True(t, te.Released, "%d", i)
			assert.Regexp(t, "allowed|second time", te.Detail, "%d", i)
		}
	}
}
