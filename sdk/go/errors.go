package kvxfer

import (
	"github.com/kvxfer/kvxfer/internal/fault"
)

// Error is every error of this package. What it is, errors.Is says: errors.Is(err, ErrLeaseExpired), or of a whole group
// errors.Is(err, ErrTransfer); the tree is drawn at the groups' sentinels. A context that ended a call is its cause, so
// that errors.Is(err, context.Canceled) and errors.Is(err, context.DeadlineExceeded) hold too.
type Error struct {
	Code   string // the row of the error table, such as "LeaseExpired"
	Op     string // what was being done
	Peer   string // the node on the other side, or ""
	Region string // the region or cache concerned, or ""
	Field  string // the field that was wrong, or ""
	Detail string // one sentence; names the allowed range where a field was wrong

	// MayHaveWritten says that bytes of the target's blocks may have been changed before the failure.
	MayHaveWritten bool
	// Retryable says that the same request may be made again, under a new lease where it wrote.
	Retryable bool
	// Released says that nothing uses the caller's memory on this call's behalf any more. False: it is HELD, and what
	// started the call tells when it is free.
	Released bool
	// Guarantee is "live-client-only" where memory is concerned whose promise ends with its client's process; "" else.
	Guarantee string
	// Blocks are the caller's own blocks that the call was about, in its order; nil where it was about none.
	Blocks []uint32

	Err error // the cause, or nil
}

// TransferError is what leases and transfers end with. It is the same type as [Error], since a transfer may end with a row of
// any group (a node that drains, a daemon that is gone) and MayHaveWritten, Blocks and Released count for each of them:
//
//	var te *kvxfer.TransferError
//	if errors.As(err, &te) && te.MayHaveWritten {
//		recompute(te.Blocks)
//	}
type TransferError = Error

// Error names the operation and the code, then what it concerns, then the detail and the cause.
func (e *Error) Error() string {
	fe := fault.Error{Op: e.Op, Peer: e.Peer, Region: e.Region, Field: e.Field, Detail: e.Detail, Err: e.Err, MayHaveWritten: e.MayHaveWritten, Guarantee: e.Guarantee}
	return fe.Text(e.Code)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel of e's row or of its group.
func (e *Error) Is(target error) bool {
	r, ok := rows[e.Code]
	return ok && (target == r.sentinel || target == r.group)
}

// row is one row of the error table.
type row struct{ sentinel, group error }

// group stands for all errors of one group.
type group string

func (g group) Error() string { return "kvxfer: " + string(g) }

// newError is the one way from the module's own errors to the caller's. released: nothing uses the caller's memory on the
// call's behalf any more. blocks are the caller's own, kept as they are. A nil fe gives nil.
func newError(fe *fault.Error, released bool, blocks []uint32) *TransferError {
	if fe == nil {
		return nil
	}
	return &Error{Code: fe.Code.String(), Op: fe.Op, Peer: fe.Peer, Region: fe.Region, Field: fe.Field, Detail: fe.Detail,
		MayHaveWritten: fe.MayHaveWritten, Retryable: fe.Retryable(), Released: released, Guarantee: weakness(fe.Guarantee),
		Blocks: blocks, Err: fe.Err}
}

// weakness is a guarantee as errors carry it: "" for the full one.
func weakness(guarantee string) string {
	if guarantee == guaranteeFull {
		return ""
	}
	return guarantee
}

// asError makes any error one of this package, of a call that is about no memory; nil stays nil. op fills an empty Op.
func asError(op string, err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		return e
	}
	e := newError(fault.From(op, err), true, nil)
	if e.Op == "" {
		e.Op = op
	}
	return e
}

// invalid is an ErrInvalidArgument for a named field; the text must say what is allowed.
func invalid(op, field, format string, args ...any) error {
	return newError(fault.Invalid(op, field, format, args...), true, nil)
}
