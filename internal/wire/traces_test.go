package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestTraceBodiesNameFieldAndRange(t *testing.T) {
	for _, id := range []string{"", TraceLatest, "0", sampleTrace} {
		require.NoError(t, (&TraceQuery{ID: id, TimeoutMillis: 1}).Validate(), id)
	}
	info := TraceOfInfo{TraceID: sampleTrace, Peers: []string{"n1"}}
	require.NoError(t, info.Validate())
	for field, v := range map[string]interface{ Validate() error }{
		"id of a query":         &TraceQuery{ID: "0G", TimeoutMillis: 1},
		"timeout_ms of a query": &TraceQuery{ID: "0"},
		"id":                    &TraceOf{},
		"id as a word":          &TraceOf{ID: TraceLatest},
		"id too long":           &TraceOf{ID: sampleTrace + "0"},
		"trace_id":              &TraceOfInfo{TraceID: "12"},
		"peers":                 &TraceOfInfo{TraceID: sampleTrace, Peers: []string{"a\nb"}},
		"peers, many":           &TraceOfInfo{TraceID: sampleTrace, Peers: make([]string, MaxTracePeers+1)},
		"left_off":              &TraceOfInfo{TraceID: sampleTrace, LeftOff: -1},
	} {
		err := v.Validate()
		require.ErrorIs(t, err, fault.ErrInvalidArgument, field)
		assert.Equal(t, strings.TrimRight(strings.Fields(field)[0], ","), fault.From("", err).Field)
		assert.ErrorContains(t, err, "allowed", field)
	}
}

// FuzzTraceID: what passes is an id's beginning and nothing else, so that it can stand in a log line and a file's name.
func FuzzTraceID(f *testing.F) {
	for _, s := range []string{"", "0", sampleTrace, TraceLatest, "../x", "A", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if (&TraceOf{ID: s}).Validate() == nil {
			assert.Regexp(t, "^[0-9a-f]{1,32}$", s)
		}
	})
}
