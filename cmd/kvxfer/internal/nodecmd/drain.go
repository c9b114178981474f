package nodecmd

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const drainHelp = `Usage:
  kvxfer drain [--timeout DURATION] [--socket PATH] [--json]

Has this host's daemon grant and start nothing new, and waits until what runs is over. Leases that nobody has bound end at once;
the registry, peers and /readyz are told. The daemon itself goes on, and its clients stay attached: stop it (SIGTERM) when it is
idle. What is left after the timeout goes on, too, and drain may be asked again. There is no way back but a restart: peers were
refused, and tickets are void. For root and the daemon's own user.

Flags:
  --timeout DURATION  how long to wait, such as 30s or 5m (default 1m); 0: only begin
` + commonFlags + `
Examples:
  kvxfer drain --timeout 5m && systemctl stop kvxfer
  kvxfer drain --timeout 0 --json

Exit codes: 0 idle; 1 something is left, or the daemon could not be asked; 2 wrong usage.
`

// drainStep is how long one request waits: progress is shown between them.
const drainStep = time.Second

// Drain is `kvxfer drain`.
func Drain(args []string, stdout, stderr io.Writer) int {
	v := begin("drain", drainHelp, stdout, stderr)
	timeout := v.fs.Duration("timeout", time.Minute, "")
	if _, code, done := v.parse(args, 0, 0, "none"); done {
		return code
	}
	if *timeout < 0 {
		return v.Misused("--timeout %v, allowed 0 and more", *timeout)
	}
	began := time.Now()
	conn, err := v.dial(context.Background())
	if err != nil {
		return v.Fail(err)
	}
	defer conn.Close()
	left, err := v.drain(conn, began.Add(*timeout))
	if err != nil {
		return v.Fail(err)
	}
	idle := left.Leases+left.Transfers == 0
	code := command.OK
	if v.JSON {
		code = v.PrintJSON(struct {
			Idle bool `json:"idle"`
			wire.DrainInfo
			TookMs int64 `json:"took_ms"`
		}{idle, left, time.Since(began).Milliseconds()})
	} else if idle {
		code = v.print(fmt.Sprintf("idle: nothing is left to wait for; %d clients are attached\n", left.Clients))
	} else {
		code = v.print("not idle: " + leftText(left) + "\n")
	}
	if !idle {
		return command.Failed
	}
	return code
}

// drain begins and then asks until nothing is left or the time is over.
func (v *invocation) drain(conn *daemon.Conn, deadline time.Time) (left wire.DrainInfo, err error) {
	var last wire.DrainInfo
	q := wire.Drain{}
	for first := true; ; first = false {
		left = wire.DrainInfo{}
		if _, err := conn.Call(context.Background(), wire.KindDrain, &q, nil, &left); err != nil {
			return left, err
		}
		wait := min(drainStep, time.Until(deadline))
		if left.Leases+left.Transfers == 0 || wait < time.Millisecond {
			return left, nil
		}
		if first || left != last {
			fmt.Fprintf(v.Stderr, "draining: %s\n", leftText(left))
		}
		last = left
		q = wire.Drain{Wait: true, TimeoutMillis: wait.Milliseconds()}
	}
}

func leftText(left wire.DrainInfo) string {
	return fmt.Sprintf("%d leases and %d transfers are left", left.Leases, left.Transfers)
}
