package ibv

import (
	"fmt"
	"syscall"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// callFailed types the errno of a call; about says what it was made for.
func callFailed(op, call, about string, errno syscall.Errno) *fault.Error {
	e := &fault.Error{Code: fault.Internal, Op: op, Detail: call + ": " + about, Err: errno}
	switch errno {
	case syscall.ENOMEM, syscall.ENOSPC, syscall.EAGAIN, syscall.EMFILE, syscall.ENFILE, syscall.EDQUOT:
		e.Code = fault.ResourceExhausted
	case syscall.EIO, syscall.ENODEV:
		e.Code = fault.PeerLost
		e.Detail += ": the device does not answer or was removed"
	case syscall.EPERM, syscall.EACCES:
		e.Code = fault.PermissionDenied
	case syscall.EOPNOTSUPP, syscall.EPROTONOSUPPORT, syscall.ENOSYS:
		e.Code = fault.NotSupported
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EADDRNOTAVAIL:
		e.Code = fault.PeerUnreachable
	}
	return e
}

func closed(op, what string) *fault.Error {
	return fault.New(fault.Closed, op, "%s was closed", what)
}

// within refuses a number outside its range.
func within(op, field string, v, low, high int) *fault.Error {
	if v >= low && v <= high {
		return nil
	}
	return fault.Invalid(op, field, "%d is not within %d..%d", v, low, high)
}

// firstOf returns the first error, as an untyped nil where there is none.
func firstOf(errs ...*fault.Error) error {
	for _, e := range errs {
		if e != nil {
			return e
		}
	}
	return nil
}

func size(n uint64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}
