package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	kvxfer "github.com/kvxfer/kvxfer/sdk/go"
)

// talk is the conversation with the conductor.
type talk struct {
	in *json.Decoder

	mu  sync.Mutex
	out *json.Encoder
}

func newTalk(in io.Reader, out io.Writer) *talk {
	return &talk{in: json.NewDecoder(in), out: json.NewEncoder(out)}
}

// request is one line of the conductor's.
type request struct {
	ID   uint64          `json:"id"`
	Do   string          `json:"do"`
	Args json.RawMessage `json:"args"`
}

type answer struct {
	ID    uint64 `json:"id"`
	OK    any    `json:"ok,omitempty"`
	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"`
}

// say writes a line. What cannot be said any more is lost with the conductor.
func (t *talk) say(v any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_ = t.out.Encode(v)
}

// serve answers requests, each in a goroutine of its own, until the conductor has no more.
func (t *talk) serve(handle func(do string, args json.RawMessage) (any, error)) error {
	t.say(map[string]string{"event": "ready"})
	for {
		var r request
		if err := t.in.Decode(&r); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("a request: %w", err)
		}
		go func() {
			ok, err := handle(r.Do, r.Args)
			a := answer{ID: r.ID, OK: ok}
			if err != nil {
				a = answer{ID: r.ID, Error: err.Error(), Code: codeOf(err)}
			}
			t.say(a)
		}()
	}
}

// codeOf is the row of the error table; "good" for none, "" for an error of this program.
func codeOf(err error) string {
	if err == nil {
		return "good"
	}
	var e *kvxfer.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

// mayHaveWritten is what the SDK says of a transfer's bytes at the target.
func mayHaveWritten(err error) bool {
	var e *kvxfer.Error
	return errors.As(err, &e) && e.MayHaveWritten
}

// into decodes arguments and refuses unknown ones.
func into[T any](args json.RawMessage) (T, error) {
	var v T
	if err := json.Unmarshal(args, &v); err != nil {
		return v, fmt.Errorf("args: %w", err)
	}
	return v, nil
}

func unknown(do string) error { return fmt.Errorf("do: %q is no request of this role", do) }
