package embedded

import (
	"fmt"
	"log/slog"
)

// logger gives the server's warnings and errors to slog, with constant messages and the server's own text as a
// field, and swallows the rest.
type logger struct {
	log   *slog.Logger
	fatal chan string // the first fatal message; the server expects the process to end then, which is not its business here
}

func newLogger(l *slog.Logger) *logger { return &logger{log: l, fatal: make(chan string, 1)} }

func (*logger) Noticef(string, ...any) {}
func (*logger) Debugf(string, ...any)  {}
func (*logger) Tracef(string, ...any)  {}

func (l *logger) Warnf(format string, v ...any) {
	l.log.Warn("registry server warning", "text", fmt.Sprintf(format, v...))
}

func (l *logger) Errorf(format string, v ...any) {
	l.log.Error("registry server error", "text", fmt.Sprintf(format, v...))
}

func (l *logger) Fatalf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	l.log.Error("registry server failed", "text", text)
	select {
	case l.fatal <- text:
	default:
	}
}
