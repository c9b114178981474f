package logring

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheLastLinesAreKept(t *testing.T) {
	r := New(3, 1000)
	for i := range 10 {
		_, _ = fmt.Fprintf(r, "line %d\n", i)
	}
	assert.Equal(t, "line 7\nline 8\nline 9\n", string(r.Text()))
	r = New(100, 15)
	for i := range 10 {
		_, _ = fmt.Fprintf(r, "line %d\n", i)
	}
	assert.Equal(t, "line 8\nline 9\n", string(r.Text()))
	_, _ = r.Write([]byte(strings.Repeat("x", 16)))
	assert.Empty(t, r.Text(), "a line that alone is too long")
}

func TestRecordsGoOn(t *testing.T) {
	var out bytes.Buffer
	r := New(10, 1000)
	log := slog.New(r.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	log.Info("not this")
	log.With("a", 1).WithGroup("g").Warn("this", "b", 2)
	assert.Equal(t, out.String(), string(r.Text()))
	assert.Contains(t, out.String(), "a=1 g.b=2")
}
