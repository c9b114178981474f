package kvxfer

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/wire"
)

// A write whose bytes are all final ends by its request; a daemon of before that gets PUSH_FINISH behind its answer, with the same
// notification.
func TestWriteFinishesByItsRequest(t *testing.T) {
	for name, knows := range map[string]bool{"daemon that knows it": true, "older daemon": false} {
		t.Run(name, func(t *testing.T) {
			d := startFake(t)
			d.set(func() {
				d.special[wire.KindPush] = func(wire.Frame) (any, []byte, bool) {
					return &wire.PushInfo{Transfer: 9, TraceID: "000102030405060708090a0b0c0d0e0f", Finished: knows}, nil, true
				}
			})
			_, cache := d.attach()
			p, err := cache.Write(within(t), []int{0}, "ticket", Notify([]byte("note")))
			require.NoError(t, err)
			var q wire.PushRequest
			d.got(wire.KindPush, 1, &q)
			assert.True(t, q.Finish)
			assert.Equal(t, "note", string(q.Notification))
			require.NoError(t, p.Finish(nil), "nothing more to say")
			require.Error(t, p.Finish([]byte("another")))
			if !knows {
				f := d.got(wire.KindPushFinish, 1, nil)
				assert.Equal(t, "note", string(f.Array))
			}
			d.event(wire.KindEventTransfer, &wire.TransferEvent{Transfer: 9, Released: true}, nil)
			_, err = p.Wait(within(t))
			require.NoError(t, err)
			if knows {
				assert.Zero(t, d.count(wire.KindPushFinish))
			}
			l, err := cache.Write(within(t), []int{1}, "ticket", Layerwise())
			require.NoError(t, err)
			q = wire.PushRequest{}
			d.got(wire.KindPush, 2, &q)
			assert.False(t, q.Finish)
			l.Cancel()
		})
	}
}
