//go:build !race

package rawsock

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNothingIsAllocated(t *testing.T) {
	p := pairs(t)["unix"]
	var s Sender
	var r Receiver
	require.NoError(t, s.Init(p[0]))
	require.NoError(t, r.Init(p[1]))
	b, into, oob := make([]byte, 64), make([]byte, 128), make([]byte, 64)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if n, err := s.Send(b); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
		if n, _, _, err := r.Receive(into, oob); n != len(b) || err != nil {
			t.Fatal(n, err)
		}
	}))
}
