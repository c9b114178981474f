package fault_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/format"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/fault/gen/render"
)

func TestTableIsSound(t *testing.T) {
	raw, err := os.ReadFile("table.json")
	require.NoError(t, err)
	_, err = render.Parse(raw)
	require.NoError(t, err)

	_, err = render.Parse([]byte(`{"groups":[{"name":"G"}],"faults":[{"code":1,"name":"Aa","group":"G","doc":"d"},{"code":1,"name":"Bb","group":"G","doc":"d"}]}`))
	assert.ErrorContains(t, err, "code 1 is doubled")
}

func TestGeneratedFilesAreCurrent(t *testing.T) {
	raw, err := os.ReadFile("table.json")
	require.NoError(t, err)
	advice, err := os.ReadFile("advice.json")
	require.NoError(t, err)
	files, err := render.All(raw, advice)
	require.NoError(t, err)
	for name, text := range files {
		if filepath.Ext(name) == ".go" {
			text, err = format.Source(text)
			require.NoError(t, err)
		}
		have, err := os.ReadFile(filepath.Join("..", "..", name))
		require.NoError(t, err)
		assert.Equal(t, string(text), string(have), "%s is stale: run go generate ./internal/fault", name)
	}
}

func TestEveryErrorHasAPage(t *testing.T) {
	raw, err := os.ReadFile("table.json")
	require.NoError(t, err)
	table, err := render.Parse(raw)
	require.NoError(t, err)
	_, err = render.ParseAdvice([]byte(`{"Internal": {"written": "w", "causes": ["c"], "do": ["d"]}}`), table)
	assert.ErrorContains(t, err, "InvalidArgument lacks")
	pages, err := filepath.Glob("../../docs/errors/*.md")
	require.NoError(t, err)
	assert.Len(t, pages, len(table.Faults), "a page for each row, and none for what is no row")
}

func TestIsMatchesByCode(t *testing.T) {
	err := fmt.Errorf("outer: %w", &fault.Error{Code: fault.LeaseExpired, Op: "push"})
	assert.ErrorIs(t, err, fault.ErrLeaseExpired)
	assert.NotErrorIs(t, err, fault.ErrLeaseRevoked)
	assert.Equal(t, fault.LeaseExpired, fault.CodeOf(err))
	assert.Equal(t, fault.DeadlineExceeded, fault.CodeOf(context.DeadlineExceeded))
	assert.Equal(t, fault.Internal, fault.CodeOf(errors.New("x")))
	assert.Equal(t, fault.Code(0), fault.CodeOf(nil))
}

func TestErrorSurvivesTheWire(t *testing.T) {
	in := &fault.Error{Code: fault.PeerLost, Op: "push", Peer: "decode-0", Region: "kv", Field: "f", Detail: "gone", MayHaveWritten: true}
	raw, err := json.Marshal(fault.ToWire(in))
	require.NoError(t, err)
	var w fault.Wire
	require.NoError(t, json.Unmarshal(raw, &w))
	out := fault.FromWire(&w)
	assert.Equal(t, in.Error(), out.Error())
	assert.True(t, fault.From("", out).Retryable())
	assert.Nil(t, fault.ToWire(nil))
	assert.NoError(t, fault.FromWire(nil))

	newer := fault.FromWire(&fault.Wire{Code: 60000, Name: "FromTheFuture", Detail: "x"})
	assert.ErrorIs(t, newer, fault.ErrInternal)
	assert.ErrorContains(t, newer, "FromTheFuture: x")
	assert.False(t, fault.From("", newer).Retryable())
	newer = fault.FromWire(&fault.Wire{Code: 60000, Name: "FromTheFuture", Retryable: true})
	assert.ErrorIs(t, newer, fault.ErrInternal)
	assert.True(t, fault.From("", newer).Retryable(), "who made the code knows")
	assert.True(t, fault.ToWire(newer).Retryable, "told on")
}

func TestAnErrorMayDifferFromTheTable(t *testing.T) {
	for _, c := range []struct {
		e    fault.Error
		want bool
	}{
		{fault.Error{Code: fault.NotFound}, false},
		{fault.Error{Code: fault.NotFound, Retry: true}, true},
		{fault.Error{Code: fault.PeerLost}, true},
		{fault.Error{Code: fault.PeerLost, NoRetry: true}, false},
	} {
		assert.Equal(t, c.want, c.e.Retryable())
		w := fault.ToWire(&c.e)
		assert.Equal(t, c.want, w.Retryable)
		assert.Equal(t, c.want, fault.From("", fault.FromWire(w)).Retryable(), "over the wire")
	}
}
