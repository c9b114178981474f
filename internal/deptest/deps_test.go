package deptest

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/kvxfer/kvxfer/"

// rule: no package below From may depend, directly or through others, on a package that begins with a Not.
type rule struct {
	from string
	not  []string
	why  string
}

var rules = []rule{
	{"rdma", []string{module + "xfer", module + "registry", module + "internal/wire", module + "internal/node"},
		"the fabric contract and its providers know nothing of caches, leases or nodes"},
	{"rdma", []string{"github.com/nats-io", "github.com/cockroachdb", "go.opentelemetry.io"},
		"a provider moves bytes; registry, storage and tracing are the node's"},
	{"xfer/protocol", []string{"net", "github.com/cockroachdb", "github.com/nats-io", "go.opentelemetry.io", module + "xfer/blockdb", module + "rdma/tcp", module + "rdma/shm", module + "rdma/verbs", module + "internal/wire"},
		"the state machines are pure: same input, same output"},
	{"xfer/explore", []string{"net", "github.com/cockroachdb", "github.com/nats-io", "go.opentelemetry.io", module + "xfer/blockdb", module + "rdma/tcp", module + "rdma/shm", module + "rdma/verbs", module + "internal/wire"},
		"the model is as pure as the machines in it"},
	{"xfer/layout", []string{"net", "github.com/cockroachdb", "github.com/nats-io", "go.opentelemetry.io", module + "xfer/blockdb", module + "rdma/tcp", module + "rdma/shm", module + "rdma/verbs"},
		"arithmetic is pure"},
	{"xfer", []string{"github.com/nats-io", module + "registry", module + "internal/node", module + "internal/localapi", module + "internal/peerlink", module + "rdma/tcp", module + "rdma/shm", module + "rdma/verbs"},
		"the engine reaches registry, clients, peers and providers through contracts only"},
	{"xfer", []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "google.golang.org/grpc"},
		"the engine names spans; exporting them is the node's"},
	{"internal/telemetry/instrument", []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "github.com/prometheus"},
		"whoever counts names instruments; reading them is internal/telemetry's"},
	{"registry", []string{module + "xfer", module + "rdma", "github.com/cockroachdb"},
		"the directory is disposable and knows nothing of transfers"},
	{"internal/wire", []string{"github.com/nats-io", "github.com/cockroachdb", "go.opentelemetry.io", "net"},
		"the Go client links it: no NATS, no Pebble; framing does no I/O of its own"},
	{"internal/traceview", []string{"github.com/nats-io", "github.com/cockroachdb", module + "xfer", module + "rdma"},
		"a picture is made from files alone"},
}

// pureRegistry: only the registry's own contract is held to this, its implementations speak NATS.
var exact = []rule{
	{"registry", []string{"github.com/nats-io"}, "the contract of the directory is pure; natskv implements it"},
	{"sdk/go", []string{"github.com/nats-io", "github.com/cockroachdb", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "google.golang.org/grpc",
		"net", "runtime/cgo", module + "xfer/protocol", module + "xfer/blockdb", module + "rdma/tcp", module + "rdma/shm", module + "rdma/verbs", module + "internal/node", module + "internal/telemetry", module + "internal/config"},
		"a client links no node, no registry and no cgo; sdk/go/embed may link everything"},
}

func deps(t *testing.T, pkg string) []string {
	out, err := exec.Command("go", "list", "-deps", pkg).Output()
	require.NoError(t, err, pkg)
	return strings.Fields(string(out))
}

func packages(t *testing.T, below string) []string {
	out, err := exec.Command("go", "list", strings.TrimSuffix(module+below, "/")+"/...").Output()
	require.NoError(t, err, below)
	return strings.Fields(string(out))
}

func check(t *testing.T, pkg string, r rule) {
	for _, d := range deps(t, pkg) {
		for _, not := range r.not {
			// A standard package is meant by its whole name, another one with everything below it.
			if d == not || (strings.Contains(not, ".") && strings.HasPrefix(d, not+"/")) {
				assert.Fail(t, "forbidden import", "%s depends on %s: %s", pkg, d, r.why)
			}
		}
	}
}

func TestDirectionOfImports(t *testing.T) {
	for _, r := range rules {
		for _, pkg := range packages(t, r.from) {
			if r.from == "registry" && len(pkg) > len(module+r.from) {
				continue // its implementations reach the world; the rule for them is the one on xfer and rdma
			}
			check(t, pkg, r)
		}
	}
	for _, r := range exact {
		check(t, module+r.from, r)
	}
}

// TestPureCoresTouchNothing looks at what the pure packages import themselves; fmt and the like reach os inside.
func TestPureCoresTouchNothing(t *testing.T) {
	for _, pkg := range []string{"xfer/protocol", "xfer/layout", "xfer/fair", "xfer/explore", "rdma", "rdma/verbs/nic", "rdma/verbs/pick", "internal/traceview"} {
		out, err := exec.Command("go", "list", "-f", "{{join .Imports \"\\n\"}}", module+pkg).Output()
		require.NoError(t, err)
		for _, d := range strings.Fields(string(out)) {
			for _, not := range []string{"os", "net", "sync", "syscall", "golang.org/x/sys/unix", "math/rand", "math/rand/v2", "crypto/rand", "log/slog"} {
				assert.NotEqual(t, not, d, "%s is pure: no clock, goroutine, lock or I/O", pkg)
			}
		}
	}
}

// TestOnlyTheNodeComposes: one place knows every implementation.
func TestOnlyTheNodeComposes(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}: {{join .Imports \" \"}}", module+"...").Output()
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		pkg, imports, _ := strings.Cut(line, ": ")
		for _, impl := range []string{"registry/natskv", "registry/embedded", "rdma/tcp", "rdma/shm", "rdma/verbs", "internal/localapi", "internal/peerlink", "internal/hostmem"} {
			if !strings.Contains(" "+imports+" ", " "+module+impl+" ") {
				continue
			}
			own := strings.HasPrefix(pkg, module+impl) || (impl == "internal/hostmem" && (pkg == module+"internal/localapi" || pkg == module+"internal/ring"))
			assert.True(t, own || pkg == module+"internal/node", "%s imports %s: only internal/node composes implementations", pkg, impl)
		}
	}
}

// TestWhoRunsANode: a node is a process, or part of a program that asked for it.
func TestWhoRunsANode(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}: {{join .Imports \" \"}}", module+"...").Output()
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		pkg, imports, _ := strings.Cut(line, ": ")
		if strings.Contains(" "+imports+" ", " "+module+"internal/node ") {
			assert.Contains(t, []string{module + "cmd/kvxfer", module + "cmd/kvxfer/internal/doctorcmd", module + "cmd/kvxfer/internal/benchcmd", module + "sdk/go/embed"}, pkg, "only the command (doctor checks its providers, bench measures one) and sdk/go/embed run a node")
		}
	}
}

// TestGoClientHasNoCgo: not even the standard library's net and os/user, which use cgo where it is there, come with the Go
// client: a program that links it builds the same with and without a C compiler.
func TestGoClientHasNoCgo(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if .CgoFiles}}{{.ImportPath}}{{end}}", module+"sdk/go").Output()
	require.NoError(t, err)
	assert.Empty(t, strings.Fields(string(out)))
	build := exec.Command("go", "build", "-o", os.DevNull, module+"sdk/go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	said, err := build.CombinedOutput()
	require.NoError(t, err, "%s", said)
}

// TestSimulationStaysInTests: what is simulated, and the suites, are linked into nothing that runs.
func TestSimulationStaysInTests(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}}: {{join .Imports \" \"}}", module+"...").Output()
	require.NoError(t, err)
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		pkg, imports, _ := strings.Cut(line, ": ")
		for _, sim := range []string{"rdma/simfabric", "rdma/fabrictest", "rdma/verbs/internal/softnic", "xfer/simtest", "rdma/verbs/sysfs/sysfstest"} {
			if strings.Contains(" "+imports+" ", " "+module+sim+" ") {
				assert.True(t, sim == "rdma/simfabric" && pkg == module+"xfer/simtest", "%s imports %s: only tests may", pkg, sim)
			}
		}
	}
}

// TestNoPackageIsCalledNothing: a package's name says its subject.
func TestNoPackageIsCalledNothing(t *testing.T) {
	for _, pkg := range packages(t, "") {
		for _, bad := range []string{"util", "utils", "common", "helpers", "misc"} {
			assert.NotEqual(t, bad, pkg[strings.LastIndexByte(pkg, '/')+1:], pkg)
		}
	}
}
