package peerlink

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
	"github.com/kvxfer/kvxfer/xfer"
)

// TestDialerSaysWhatItCannotDo: who accepted has a link already and learns why it loses it.
func TestDialerSaysWhatItCannotDo(t *testing.T) {
	a := newNode(t, "a", epochA)
	told := make(chan error, 1)
	addr := peer(t, func(h wire.Hello) []byte {
		ok := goodAnswer(h)
		ok.Required = []string{"ring"}
		return frame(t, wire.KindHelloOK, helloRequest, &ok, nil)
	}, func(c net.Conn) {
		f, err := wire.ReadFrame(c, wire.PeerLimits)
		if err == nil && f.Kind == wire.KindError && f.Request == 0 {
			var w fault.Wire
			err = f.Decode(&w)
			told <- errors.Join(err, fault.FromWire(&w))
			return
		}
		told <- fmt.Errorf("%s: %w", f.Kind, err)
	})
	e := dialFails(t, a, xfer.PeerRef{Node: "b", Epoch: epochB, Addr: addr}, fault.ErrFeatureRequired)
	assert.Contains(t, e.Detail, "ring")
	assert.Equal(t, "b", e.Peer)
	assert.ErrorIs(t, <-told, fault.ErrFeatureRequired)
}

func TestStrangersAreNotedOnce(t *testing.T) {
	var s strangers
	versions := fault.New(fault.VersionMismatch, "hello", "the other side speaks 2..2, this side 1..1")
	feature := fault.New(fault.FeatureRequired, "hello", "unknown here: [ring]")
	assert.Equal(t, slog.LevelWarn, s.level("a", "1", versions))
	assert.Equal(t, slog.LevelDebug, s.level("a", "1", feature))
	assert.Equal(t, slog.LevelWarn, s.level("a", "2", feature), "another incarnation may be another build")
	assert.Equal(t, slog.LevelWarn, s.level("b", "1", versions))
	for range 2 {
		assert.Equal(t, slog.LevelInfo, s.level("c", "1", fault.New(fault.PeerUnreachable, "dial", "no")), "all other failures are told each time")
	}
	for i := range 3 * maxStrangers {
		assert.Equal(t, slog.LevelWarn, s.level("n", fmt.Sprint(i), versions))
		assert.LessOrEqual(t, len(s.seen), maxStrangers)
	}
}
