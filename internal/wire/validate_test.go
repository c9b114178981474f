package wire

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestValidateNamesFieldAndRange(t *testing.T) {
	hello := Hello{MinVersion: 1, MaxVersion: 1}
	region := RegisterRegion{Name: "kv", ID: sampleLease, Kind: RegionMemfd, Size: 4096}
	cache := RegisterCache{Name: "c", Region: 1, Model: "m", Layout: sampleLayout(), NumBlocks: 1}
	lease := LeaseRequest{Cache: 1, Mode: ModeWrite, TTLMillis: 1}
	push := PushRequest{Cache: 1, TimeoutMillis: MaxMillis}
	bound := Bound{Layout: sampleLayout(), NumBlocks: 1, RemainingMillis: 1}
	type validator interface{ Validate() error }
	for _, v := range []validator{&hello, &region, &cache, &lease, &push, &bound, sampleBind()} {
		require.NoError(t, v.Validate())
	}
	long := strings.Repeat("x", 1<<20)
	for _, c := range []struct {
		base   validator
		change func(v validator)
		field  string
	}{
		{&hello, func(v validator) { v.(*Hello).Tenant = "a/b" }, "tenant"},
		{&hello, func(v validator) { v.(*Hello).Node = long }, "node"},
		{&hello, func(v validator) { v.(*Hello).WantNode = " " }, "want_node"},
		{&hello, func(v validator) { v.(*Hello).Provider = "\n" }, "provider"},
		{&hello, func(v validator) { v.(*Hello).Epoch = "1" }, "epoch"},
		{&hello, func(v validator) { v.(*Hello).WantEpoch = long }, "want_epoch"},
		{&hello, func(v validator) { v.(*Hello).Software = long }, "software"},
		{&hello, func(v validator) { v.(*Hello).Process = long }, "process"},
		{&region, func(v validator) { v.(*RegisterRegion).Name = "" }, "name"},
		{&region, func(v validator) { v.(*RegisterRegion).Name = "a b" }, "name"},
		{&region, func(v validator) { v.(*RegisterRegion).Name = long }, "name"},
		{&region, func(v validator) { v.(*RegisterRegion).ID = "12" }, "id"},
		{&region, func(v validator) { v.(*RegisterRegion).ID = strings.Repeat("A", 32) }, "id"},
		{&region, func(v validator) { v.(*RegisterRegion).Kind = long }, "kind"},
		{&region, func(v validator) { v.(*RegisterRegion).Size = 0 }, "size"},
		{&region, func(v validator) { v.(*RegisterRegion).Size = ^uint64(0) }, "size"},
		{&region, func(v validator) { v.(*RegisterRegion).Offset = MaxRegionBytes + 1 }, "offset"},
		{&region, func(v validator) {
			r := v.(*RegisterRegion)
			r.Kind, r.Addr, r.Offset = RegionProcess, 4096, 16
		}, "offset"},
		{&cache, func(v validator) { v.(*RegisterCache).Name = "/" }, "name"},
		{&cache, func(v validator) { v.(*RegisterCache).Model = "" }, "model"},
		{&cache, func(v validator) { v.(*RegisterCache).Revision = long }, "revision"},
		{&cache, func(v validator) { v.(*RegisterCache).Compat = long }, "compat"},
		{&cache, func(v validator) { v.(*RegisterCache).Layout.Layers = 0 }, "layout.layers"},
		{&cache, func(v validator) { v.(*RegisterCache).NumBlocks = 0 }, "num_blocks"},
		{&lease, func(v validator) { v.(*LeaseRequest).Mode = "peek" }, "mode"},
		{&lease, func(v validator) { v.(*LeaseRequest).TTLMillis = 0 }, "ttl_ms"},
		{&lease, func(v validator) { v.(*LeaseRequest).TTLMillis = MaxMillis + 1 }, "ttl_ms"},
		{&push, func(v validator) { v.(*PushRequest).TimeoutMillis = -1 }, "timeout_ms"},
		{&push, func(v validator) { v.(*PushRequest).SpanID = "zz" }, "span_id"},
		{&push, func(v validator) { v.(*PushRequest).Finish, v.(*PushRequest).Layerwise = true, true }, "finish"},
		{&push, func(v validator) { v.(*PushRequest).Notification = []byte("n") }, "notification"},
		{&push, func(v validator) {
			v.(*PushRequest).Finish, v.(*PushRequest).Notification = true, make([]byte, MaxNotification+1)
		}, "notification"},
		{sampleBind(), func(v validator) { v.(*Bind).Lease = "" }, "lease"},
		{sampleBind(), func(v validator) { v.(*Bind).Secret = nil }, "secret"},
		{sampleBind(), func(v validator) { v.(*Bind).Transfer = "x" }, "transfer"},
		{sampleBind(), func(v validator) { v.(*Bind).Layout.DType = "x" }, "layout.dtype"},
		{sampleBind(), func(v validator) { v.(*Bind).Blocks = 0 }, "blocks"},
		{sampleBind(), func(v validator) { v.(*Bind).RemainingMillis = 0 }, "remaining_ms"},
		{&bound, func(v validator) { v.(*Bound).NumBlocks = 0 }, "num_blocks"},
		{&bound, func(v validator) { v.(*Bound).Layout.TPSize = 0 }, "layout.tp_size"},
	} {
		copied := reflect.New(reflect.TypeOf(c.base).Elem())
		copied.Elem().Set(reflect.ValueOf(c.base).Elem())
		v := copied.Interface().(validator)
		c.change(v)
		err := v.Validate()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, "%s of %T", c.field, v)
		assert.Equal(t, c.field, fault.From("", err).Field, "%T", v)
		assert.ErrorContains(t, err, "allowed")
		assert.Less(t, len(err.Error()), 512)
	}
	assert.NoError(t, CheckNotification("push_finish", make([]byte, MaxNotification)))
	assert.ErrorIs(t, CheckNotification("push_finish", make([]byte, MaxNotification+1)), fault.ErrInvalidArgument)
}
