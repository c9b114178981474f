package kvxfer

import (
	"log/slog"
	"testing"
	"time"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// FuzzFrames gives a session with a lease, an advertisement and a push any frame that a daemon could send: no panic, and the
// handles end at most once.
func FuzzFrames(f *testing.F) {
	f.Add(uint8(wire.KindEventLease), uint64(0), []byte(`{"lease":1,"generation":2}`), []byte("note"))
	f.Add(uint8(wire.KindEventLease), uint64(0), []byte(`{"lease":1,"error":{"code":22,"name":"LeaseExpired"}}`), []byte{})
	f.Add(uint8(wire.KindEventLayers), uint64(0), []byte{}, wire.AppendLayersVisible(nil, wire.LayersVisible{Lease: 1, Layers: []uint32{0, 2}}))
	f.Add(uint8(wire.KindEventHolder), uint64(0), []byte(`{"lease":2,"peer":"p","bytes":3}`), []byte{})
	f.Add(uint8(wire.KindEventTransfer), uint64(0), []byte(`{"transfer":3,"released":true}`), []byte{})
	f.Add(uint8(wire.KindEventReleased), uint64(0), []byte(`{"transfer":3}`), []byte{})
	f.Add(uint8(wire.KindEventGranted), uint64(0), []byte(`{"cache":4,"lease":9,"lease_id":"x","mode":"read"}`), wire.AppendU32s(nil, []uint32{1}))
	f.Add(uint8(wire.KindOK), uint64(5), []byte(`{"lease":8,"ticket":"t"}`), []byte{})
	f.Add(uint8(wire.KindError), uint64(5), []byte(`{"code":4,"name":"NotFound"}`), []byte{})
	f.Fuzz(func(t *testing.T, kind uint8, id uint64, json, array []byte) {
		c := &Client{completed: newCompleted(), spans: &spans{}, closed: true}
		conn := &connection{log: slog.New(slog.DiscardHandler), calls: map[uint64]*call{}, lost: fault.New(fault.Closed, "", "a test")}
		s := newSession(conn, c)
		conn.listener = s
		g, err := testLayout.geometry(8)
		if err != nil {
			t.Fatal(err)
		}
		cache := &Cache{registered: registered{client: c, name: "c"}, spec: CacheSpec{Name: "c", Layout: testLayout, NumBlocks: 8}, geometry: g, vouched: newVouched(8)}
		lease := newLease(s, granted{LeaseInfo: wire.LeaseInfo{Lease: 1}, ttl: time.Hour}, "c", 3, []uint32{1, 2}, cache.vouched, guaranteeFull, nil)
		adv := newAdvertisement(s, granted{LeaseInfo: wire.LeaseInfo{Lease: 2}}, "r", ModeRead, guaranteeFull, nil)
		push := &Push{}
		push.init(s, "write", "c", []uint32{3}, guaranteeFull, push, time.Hour, nil)
		s.addLease(1, lease)
		s.addLease(2, adv)
		s.addTransfer(3, push)
		s.addCache(4, cache)
		conn.calls[5] = &call{request: request{op: "lease", onOK: func(f *wire.Frame) error { return f.Decode(&wire.LeaseInfo{}) }}, done: make(chan struct{})}
		for range 2 {
			conn.take(&wire.Frame{Kind: wire.Kind(kind), Request: id, JSON: json, Array: array})
		}
		s.onDaemonExit()
		for _, h := range []Ended{lease, adv, push} {
			<-h.Done()
			if !h.Released() {
				t.Error("not released by the daemon's exit")
			}
		}
		if n := len(c.Completed()); n < 3 || n > 4 { // what EVENT_GRANTED told of may have ended too
			t.Errorf("%d things have ended", n)
		}
	})
}
