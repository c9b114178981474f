package nodecmd

import (
	"context"
	"fmt"
	"io"

	"github.com/kvxfer/kvxfer/internal/wire"
)

const logLevelHelp = `Usage:
  kvxfer log-level [LEVEL] [--socket PATH] [--json]

Says at which level this host's daemon logs, or sets it until the daemon ends: debug, info, warn or error. A restart takes what
--log-level of kvxfer serve says. For root and the daemon's own user.

Flags:
` + commonFlags + `
Examples:
  kvxfer log-level
  kvxfer log-level debug
` + exitCodes

// LogLevel is `kvxfer log-level`.
func LogLevel(args []string, stdout, stderr io.Writer) int {
	v := begin("log-level", logLevelHelp, stdout, stderr)
	names, code, done := v.parse(args, 0, 1, "at most 1: a level")
	if done {
		return code
	}
	q := wire.LogLevel{}
	if len(names) > 0 {
		q.Level = names[0]
	}
	if err := q.Validate(); err != nil || len(names) > 0 && q.Level == "" {
		return v.Misused("%q is no level: allowed are debug, info, warn, error", q.Level)
	}
	ctx := context.Background()
	conn, err := v.dial(ctx)
	if err != nil {
		return v.Fail(err)
	}
	defer conn.Close()
	var info wire.LogLevelInfo
	if _, err := conn.Call(ctx, wire.KindLogLevel, &q, nil, &info); err != nil {
		return v.Fail(err)
	}
	switch {
	case v.JSON:
		return v.PrintJSON(info)
	case info.Level == info.Was:
		return v.print(info.Level + "\n")
	}
	return v.print(fmt.Sprintf("%s (was %s)\n", info.Level, info.Was))
}
