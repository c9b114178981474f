package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

//go:generate go run ./gen

// Code says what a failure is. Its number is part of both wire protocols and never reused.
type Code uint16

// Error is one failure. The zero value of each field but Code means "does not apply".
type Error struct {
	Code   Code
	Op     string // what was being done: "lease", "push", "register_region"
	Peer   string // the node on the other side
	Region string // the region or cache concerned
	Field  string // the field that was wrong, by its wire name
	Detail string // one sentence; names the allowed range where a field was wrong
	// MayHaveWritten says that bytes of the target's blocks may have been changed before the failure.
	MayHaveWritten bool
	// NoRetry overrides the table where a code is retryable as a rule but not in this case.
	NoRetry bool
	// Retry overrides the table the other way: what is not there may be there in a moment, as when its node restarts.
	Retry bool
	// Guarantee is "live-client-only" where memory is concerned whose promise ends with its client's process; "": the full one.
	Guarantee string
	// Err is the cause; it does not travel over the wire, its text does.
	Err error
}

// New makes an Error of code c with a formatted detail.
func New(c Code, op, format string, args ...any) *Error {
	return &Error{Code: c, Op: op, Detail: fmt.Sprintf(format, args...)}
}

// Invalid makes an InvalidArgument for a named field; the detail must say what is allowed.
func Invalid(op, field, format string, args ...any) *Error {
	return &Error{Code: InvalidArgument, Op: op, Field: field, Detail: fmt.Sprintf(format, args...)}
}

// Wrap makes an Error of code c around err. A nil err gives nil.
func Wrap(c Code, op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Code: c, Op: op, Err: err}
}

// Error names the code, then what it concerns, then the detail and the cause.
func (e *Error) Error() string { return e.Text(e.Code.String()) }

// Text is Error's text with another name for the code: a newer side's, which the table here does not have.
func (e *Error) Text(code string) string {
	var b strings.Builder
	b.WriteString("kvxfer: ")
	if e.Op != "" {
		b.WriteString(e.Op + ": ")
	}
	b.WriteString(code)
	for _, kv := range [...]struct{ k, v string }{{"peer", e.Peer}, {"region", e.Region}, {"field", e.Field}} {
		if kv.v != "" {
			fmt.Fprintf(&b, " %s=%q", kv.k, kv.v)
		}
	}
	if e.Detail != "" {
		b.WriteString(": " + e.Detail)
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.MayHaveWritten {
		b.WriteString(" (target bytes may have been written)")
	}
	if e.Guarantee != "" {
		b.WriteString(" (guarantee: " + e.Guarantee + ")")
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is the sentinel of e's code.
func (e *Error) Is(target error) bool {
	s, ok := target.(sentinel)
	return ok && Code(s) == e.Code
}

// Retryable says whether the same request may be made again (under a new lease where it wrote).
func (e *Error) Retryable() bool { return e.Retry || !e.NoRetry && e.Code.Retryable() }

// sentinel stands for all errors of one code.
type sentinel Code

func (s sentinel) Error() string { return "kvxfer: " + Code(s).String() }

// From returns the *Error inside err, or wraps err: a context's end becomes DeadlineExceeded or Cancelled,
// anything else Internal. A nil err gives nil.
func From(op string, err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	c := Internal
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		c = DeadlineExceeded
	case errors.Is(err, context.Canceled):
		c = Cancelled
	}
	return &Error{Code: c, Op: op, Err: err}
}

// CodeOf returns the code of err: 0 for nil, Internal for an error that carries none.
func CodeOf(err error) Code {
	if err == nil {
		return 0
	}
	return From("", err).Code
}

// Wire is an Error as both protocols carry it (a JSON object).
type Wire struct {
	Code           Code   `json:"code"`
	Name           string `json:"name"`
	Op             string `json:"op,omitempty"`
	Peer           string `json:"peer,omitempty"`
	Region         string `json:"region,omitempty"`
	Field          string `json:"field,omitempty"`
	Detail         string `json:"detail,omitempty"`
	MayHaveWritten bool   `json:"may_have_written,omitempty"`
	Retryable      bool   `json:"retryable,omitempty"`
	Guarantee      string `json:"guarantee,omitempty"`
}

// ToWire flattens err for the wire; nil stays nil.
func ToWire(err error) *Wire {
	e := From("", err)
	if e == nil {
		return nil
	}
	d := e.Detail
	if e.Err != nil {
		if d != "" {
			d += ": "
		}
		d += e.Err.Error()
	}
	return &Wire{Code: e.Code, Name: e.Code.String(), Op: e.Op, Peer: e.Peer, Region: e.Region, Field: e.Field,
		Detail: d, MayHaveWritten: e.MayHaveWritten, Retryable: e.Retryable(), Guarantee: e.Guarantee}
}

// MaxText bounds each text of an error that came over the wire, in bytes.
const MaxText = 4 << 10

// cut shortens a text to MaxText bytes and a mark.
func cut(s string) string {
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText], "") + "..."
}

// FromWire rebuilds the Error; nil stays nil. A code that this version does not know becomes Internal and keeps
// its name in the detail, so that a newer peer's errors stay readable. Texts are cut to MaxText: what one connection says is
// told on another, where a frame that grew too large would cost the whole connection.
func FromWire(w *Wire) error {
	if w == nil {
		return nil
	}
	e := &Error{Code: w.Code, Op: cut(w.Op), Peer: cut(w.Peer), Region: cut(w.Region), Field: cut(w.Field), Detail: cut(w.Detail),
		MayHaveWritten: w.MayHaveWritten, Guarantee: cut(w.Guarantee)}
	if !w.Code.Known() {
		e.Code = Internal
		e.Detail = cut(strings.TrimSuffix(w.Name+": "+w.Detail, ": "))
	}
	e.NoRetry, e.Retry = !w.Retryable, w.Retryable && !e.Code.Retryable()
	return e
}
