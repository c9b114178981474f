package supportcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"

	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/daemon"
	"github.com/kvxfer/kvxfer/cmd/kvxfer/internal/doctorcmd"
	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// maxMetrics bounds what is read of the daemon's metrics, in bytes.
const maxMetrics = 8 << 20

// asked is what the sources ask.
type asked struct {
	ctx          context.Context
	file, socket string // --config and --socket
	conn         *daemon.Conn
	noDaemon     error // why conn is nil
	status       *wire.Status
}

// sources are the files of the archive in their order. A file is added by a row.
var sources = []struct {
	name string
	get  func(*asked) ([]byte, error)
}{
	{"version.json", (*asked).version},
	{"doctor.json", (*asked).doctor},
	{"status.json", (*asked).statusText},
	{"nodes.json", inspect(wire.InspectNodes)},
	{"caches.json", inspect(wire.InspectCaches)},
	{"leases.json", inspect(wire.InspectLeases)},
	{"transfers.json", inspect(wire.InspectTransfers)},
	{"configuration.json", report(wire.ReportConfiguration)},
	{"log.txt", report(wire.ReportLog)},
	{"goroutines.txt", report(wire.ReportGoroutines)},
	{"metrics.txt", (*asked).metrics},
	{"kernel.txt", (*asked).kernel},
}

// gather asks all sources; missing says of the others why there is nothing.
func gather(ctx context.Context, file, socket string) (parts []part, missing map[string]string) {
	a := &asked{ctx: ctx, file: file, socket: doctorcmd.Place(file, socket)}
	a.conn, a.noDaemon = daemon.Dial(ctx, a.socket, "")
	if a.noDaemon == nil {
		defer a.conn.Close()
	}
	missing = map[string]string{}
	for _, s := range sources {
		text, err := s.get(a)
		if err != nil {
			missing[s.name] = err.Error()
			continue
		}
		parts = append(parts, part{s.name, text})
	}
	if len(missing) > 0 {
		text, _ := asJSON(missing)
		parts = append(parts, part{"missing.json", text})
	}
	return parts, missing
}

func asJSON(v any) ([]byte, error) {
	raw, err := json.MarshalIndent(v, "", "  ")
	return append(raw, '\n'), err
}

func (a *asked) version() ([]byte, error) {
	return asJSON(map[string]any{"version": version.Version, "commit": version.Commit(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH,
		"min_protocol": wire.MinVersion, "max_protocol": wire.MaxVersion})
}

func (a *asked) doctor() ([]byte, error) { return asJSON(doctorcmd.Host(a.ctx, a.file, a.socket)) }

func (a *asked) statusText() ([]byte, error) {
	if a.noDaemon != nil {
		return nil, a.noDaemon
	}
	var st wire.Status
	if _, err := a.conn.Call(a.ctx, wire.KindStatus, nil, nil, &st); err != nil {
		return nil, err
	}
	a.status = &st
	return asJSON(st)
}

// report asks the daemon about itself.
func report(what string) func(*asked) ([]byte, error) {
	return func(a *asked) ([]byte, error) {
		if a.noDaemon != nil {
			return nil, a.noDaemon
		}
		return a.conn.Call(a.ctx, wire.KindReport, &wire.Report{What: what}, nil, nil)
	}
}

func (a *asked) metrics() ([]byte, error) {
	if a.status == nil || a.status.HTTPAddr == "" {
		return nil, fault.New(fault.NotFound, "metrics", "no daemon with an HTTP port answers")
	}
	ctx, cancel := context.WithTimeout(a.ctx, daemon.DefaultTimeout)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.status.HTTPAddr+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	r, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(q)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Body.Close() }()
	if r.StatusCode != http.StatusOK {
		return nil, fault.New(fault.NotSupported, "metrics", "the daemon's HTTP port answers %s", r.Status)
	}
	return io.ReadAll(io.LimitReader(r.Body, maxMetrics))
}

// kernelFiles say what the kernel permits; none tells of other processes' contents.
var kernelFiles = []string{"/proc/version", "/proc/self/limits", "/proc/meminfo", "/proc/loadavg", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io",
	"/proc/self/cgroup", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/max_map_count", "/proc/sys/fs/file-nr", "/proc/sys/net/core/rmem_max",
	"/proc/sys/net/core/wmem_max", "/proc/sys/net/core/somaxconn", "/proc/sys/net/ipv4/ip_local_port_range", "/proc/net/dev", "/proc/net/sockstat"}

func (a *asked) kernel() ([]byte, error) {
	var b bytes.Buffer
	for _, path := range kernelFiles {
		raw, err := os.ReadFile(path)
		if err != nil {
			raw = []byte(err.Error() + "\n")
		}
		fmt.Fprintf(&b, "== %s\n%s", path, raw)
	}
	return b.Bytes(), nil
}
