package kvxfer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestErrorsMatchTheirRowAndGroup(t *testing.T) {
	groups := []error{ErrRequest, ErrTransfer, ErrDaemon, ErrNode}
	require.NotEmpty(t, rows)
	for name, r := range rows {
		err := fmt.Errorf("outer: %w", &Error{Code: name})
		for other, o := range rows {
			assert.Equal(t, name == other, errors.Is(err, o.sentinel), "%s is %s", name, other)
		}
		for _, g := range groups {
			assert.Equal(t, g == r.group, errors.Is(err, g), "%s in %s", name, g)
		}
	}
	assert.NotErrorIs(t, &Error{Code: "Made up"}, ErrInternal)
}

func TestErrorSaysWhatTheModuleSays(t *testing.T) {
	fe := &fault.Error{Code: fault.PeerLost, Op: "write", Peer: "n1", Region: "kv", Field: "f", Detail: "gone", MayHaveWritten: true,
		Guarantee: GuaranteeLiveClientOnly, Err: errors.New("reset")}
	err := error(newError(fe, false, []uint32{3, 1}))
	assert.Equal(t, fe.Error(), err.Error())
	var te *TransferError
	require.ErrorAs(t, err, &te)
	assert.Equal(t, &Error{Code: "PeerLost", Op: "write", Peer: "n1", Region: "kv", Field: "f", Detail: "gone", MayHaveWritten: true, Retryable: true,
		Guarantee: GuaranteeLiveClientOnly, Blocks: []uint32{3, 1}, Err: fe.Err}, te)
	assert.True(t, newError(&fault.Error{Code: fault.Closed}, true, nil).Released)
	assert.False(t, newError(&fault.Error{Code: fault.PeerLost, NoRetry: true}, true, nil).Retryable)
	assert.Empty(t, newError(&fault.Error{Guarantee: guaranteeFull}, true, nil).Guarantee)
	assert.Nil(t, newError(nil, true, nil))
}

func TestContextIsTheCause(t *testing.T) {
	for cause, code := range map[error]error{context.Canceled: ErrCancelled, context.DeadlineExceeded: ErrDeadlineExceeded} {
		err := asError("read", fmt.Errorf("while waiting: %w", cause))
		require.ErrorIs(t, err, code)
		require.ErrorIs(t, err, cause)
		assert.True(t, strings.HasPrefix(err.Error(), "kvxfer: read: "))
	}
	assert.NoError(t, asError("read", nil))
	own := invalid("read", "blocks", "none")
	assert.Same(t, own, asError("other", own))
}
