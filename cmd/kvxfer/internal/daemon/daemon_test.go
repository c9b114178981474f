package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake answers frames as f says until the connection ends; no frame: silence.
func fake(t *testing.T, f func(wire.Frame) []wire.Frame) string {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	require.NoError(t, err)
	done := make(chan struct{})
	t.Cleanup(func() { _ = ln.Close(); <-done })
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			for {
				q, err := wire.ReadFrame(c, wire.LocalLimits)
				if err != nil {
					break
				}
				for _, a := range f(q) {
					_, _ = c.Write(wire.Append(nil, a))
				}
			}
			_ = c.Close()
		}
	}()
	return path
}

func frame(t *testing.T, kind wire.Kind, id uint64, body any) wire.Frame {
	f, err := wire.NewFrame(kind, id, body, nil)
	require.NoError(t, err)
	return f
}

func TestEveryCallEnds(t *testing.T) {
	path := fake(t, func(q wire.Frame) []wire.Frame {
		switch q.Kind {
		case wire.KindHello:
			return []wire.Frame{frame(t, wire.KindHelloOK, q.Request, &wire.Hello{Node: "n", Version: 1})}
		case wire.KindStatus: // an event and another's answer first
			return []wire.Frame{frame(t, wire.KindEventReleased, 0, &wire.Released{}), frame(t, wire.KindOK, q.Request+9, nil), frame(t, wire.KindOK, q.Request, &wire.Status{Node: "n"})}
		case wire.KindBlocks:
			return []wire.Frame{wire.NewError(q.Request, fault.New(fault.NotFound, "blocks", "none"))}
		}
		return nil
	})
	c, err := Dial(t.Context(), path, "")
	require.NoError(t, err)
	defer c.Close()
	assert.Equal(t, "n", c.Hello.Node)
	var st wire.Status
	_, err = c.Call(t.Context(), wire.KindStatus, nil, nil, &st)
	require.NoError(t, err)
	assert.Equal(t, "n", st.Node)
	_, err = c.Call(t.Context(), wire.KindBlocks, &wire.BlocksQuery{}, nil, nil)
	require.ErrorIs(t, err, fault.ErrNotFound)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = c.Call(ctx, wire.KindPing, nil, nil, nil)
	require.ErrorIs(t, err, fault.ErrDeadlineExceeded)
	assert.Contains(t, err.Error(), "stopped or stuck")
}

func TestNobodyThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	_, err := Dial(t.Context(), path, "")
	require.ErrorIs(t, err, fault.ErrDaemonUnavailable)
	assert.Contains(t, err.Error(), path)
}

func TestPIDIsTheListeners(t *testing.T) {
	c, err := Dial(t.Context(), fake(t, func(q wire.Frame) []wire.Frame {
		return []wire.Frame{frame(t, wire.KindHelloOK, q.Request, &wire.Hello{Node: "n", Version: 1})}
	}), "")
	require.NoError(t, err)
	defer c.Close()
	assert.Equal(t, os.Getpid(), c.PID())
}
