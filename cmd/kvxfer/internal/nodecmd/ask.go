package nodecmd

import (
	"context"
	"flag"
	"fmt"
	"io"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/command"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/internal/wire"
)

const commonFlags = `  --socket PATH   the daemon's socket (default: $KVXFER_SOCKET, or where the daemon puts it)
  --json          one JSON object instead of text
  --help          this text
`

const tenantFlags = `  --tenant NAME   look as this tenant (default: the daemon's own)
  --all-tenants   look at every tenant; for root and the daemon's own user
`

const exitCodes = `
Exit codes: 0 done; 1 the daemon could not be asked, or refused; 2 wrong usage.
`

// invocation is one run of a command.
type invocation struct {
	command.Command
	fs     *flag.FlagSet
	socket string
	tenant string
	all    bool
}

func begin(name, help string, stdout, stderr io.Writer) *invocation {
	v := &invocation{Command: command.Command{Name: name, Help: help, Stdout: stdout, Stderr: stderr}, fs: flag.NewFlagSet(name, flag.ContinueOnError)}
	v.fs.StringVar(&v.socket, "socket", "", "")
	return v
}

// tenants declares the flags of commands whose rows belong to tenants.
func (v *invocation) tenants() {
	v.fs.StringVar(&v.tenant, "tenant", "", "")
	v.fs.BoolVar(&v.all, "all-tenants", false, "")
}

// parse reads the arguments; between least and most names are allowed.
func (v *invocation) parse(args []string, least, most int, what string) (names []string, code int, done bool) {
	names, code, done = v.Parse(v.fs, args)
	if !done && v.all && v.tenant != "" {
		return nil, v.Misused("--tenant %q and --all-tenants, allowed is one of them", v.tenant), true
	}
	if !done && (len(names) < least || len(names) > most) {
		return nil, v.Misused("%d arguments, allowed %s", len(names), what), true
	}
	return names, code, done
}

func (v *invocation) dial(ctx context.Context) (*daemon.Conn, error) {
	return daemon.Dial(ctx, v.socket, v.tenant)
}

// rows fetches every page of a query, at most `most` rows; 0: all of them. info is the first page's.
func rows[T any](ctx context.Context, v *invocation, q wire.Inspect, most int) (all []T, info wire.InspectInfo, err error) {
	conn, err := v.dial(ctx)
	if err != nil {
		return nil, info, err
	}
	defer conn.Close()
	return pages[T](ctx, conn, v, q, most)
}

func pages[T any](ctx context.Context, conn *daemon.Conn, v *invocation, q wire.Inspect, most int) (all []T, info wire.InspectInfo, err error) {
	q.AllTenants, all = v.all, []T{}
	for n := 0; ; n++ {
		if q.Limit = wire.MaxInspectRows; most > 0 {
			q.Limit = uint32(min(most-len(all), wire.MaxInspectRows))
		}
		var answer wire.InspectInfo
		array, err := conn.Call(ctx, wire.KindInspect, &q, nil, &answer)
		if err != nil {
			return nil, info, err
		}
		some, err := wire.Rows[T](array)
		if err != nil {
			return nil, info, err
		}
		all = append(all, some...)
		if n == 0 {
			info = answer
		}
		info.Next, info.Stale = answer.Next, info.Stale || answer.Stale
		if answer.Next == "" || most > 0 && len(all) >= most {
			return all, info, nil
		}
		q.After = answer.Next
	}
}

// print writes text for people.
func (v *invocation) print(text string) int {
	if _, err := io.WriteString(v.Stdout, text); err != nil {
		return v.Fail(err)
	}
	return command.OK
}

const staleNotice = "The registry is away: this is what it said last.\n"

// short is the beginning of an id, enough to name it by.
func short(id string) string { return id[:min(len(id), 12)] }

func yes(b bool, word string) string {
	if b {
		return word
	}
	return ""
}

// owner names a client for people.
func owner(process string, pid int) string {
	if process == "" && pid == 0 {
		return ""
	}
	return fmt.Sprintf("%s/%d", process, pid)
}

// waiting says what is waited for, and for how long.
func waiting(w *wire.Waiting) (what, ms string) {
	if w == nil {
		return "", ""
	}
	return w.For, command.Millis(w.Ms)
}

// memory is a name with its tenant where several are listed.
func (v *invocation) memory(tenant, name string) string {
	if v.all {
		return tenant + "/" + name
	}
	return name
}
