package benchcmd

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/kvxfer/kvxfer/internal/node"
)

// TestMain is also one end of a tool of perftest, where the tests' program is called by such a name.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); strings.HasPrefix(name, "ib_") {
		os.Exit(tool(name, os.Args[1:]))
	}
	goleak.VerifyTestMain(m)
}

// printed is what perftest 6.06 prints, with the result in place.
const printed = `---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF		Device         : rxe0
 Number of qps   : 1		Transport type : IB
 TX depth        : 128
 Mtu             : 4096[B]
 GID index       : 1
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x2bf21e RKey 0x000205 VAddr 0x007f2b3c1f0000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:07:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    %s
 %s
---------------------------------------------------------------------------------------
`

// tool plays a tool: a server that takes one connection, or the client that makes it and prints. What of it fails FAKE_PERFTEST says.
func tool(name string, args []string) int {
	arg := func(flag string) string {
		if i := slices.Index(args, flag); i >= 0 {
			return args[i+1]
		}
		return ""
	}
	addr, fail := "127.0.0.1:"+arg("-p"), os.Getenv("FAKE_PERFTEST")
	if args[len(args)-1] != "127.0.0.1" {
		if fail == "server" {
			addr = "nowhere"
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			fmt.Fprintln(os.Stderr, "Couldn't bind")
			return 1
		}
		c, err := l.Accept()
		if err != nil {
			return 1
		}
		_ = c.Close()
		fmt.Printf(printed, "", arg("-d")+" is the server's")
		return 0
	}
	c, err := net.Dial("tcp", addr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "Couldn't connect to", addr)
		return 1
	}
	_ = c.Close()
	if fail == "client" {
		fmt.Println("Completion with error at client")
		return 1
	}
	row := "    " + arg("-s") + "      " + arg("-n")
	switch {
	case fail == "row":
		row = "no numbers"
	case fail == "zero", fail != "" && os.Remove(fail) == nil: // a file's name: once
		row += "  0.00 0.00 0.000000 0.00"
	case name == latencyTool:
		row += "          10.50          80.10        11.25     	       12.03        	2.11		30.00 		80.10"
	default: // as fast as it has queue pairs
		row += "             0.00               " + arg("-q") + "00.50 		   0.001608"
	}
	fmt.Printf(printed, "BW peak[MiB/sec]    BW average[MiB/sec]   MsgRate[Mpps]", row)
	return 0
}

func fakeTools(t *testing.T) *perftest {
	self, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	for _, name := range []string{"ib_write_bw", "ib_read_bw", latencyTool} {
		require.NoError(t, os.Symlink(self, filepath.Join(bin, name)))
	}
	t.Setenv("PATH", bin)
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	return &perftest{dir: t.TempDir(), near: node.Port{Device: "near0", Port: 1, GIDIndex: 3}, far: node.Port{Device: "far0", Port: 2, GIDIndex: -1}}
}

// TestPerftest: both ends run, the row of the client's result is read, and what fails is quoted. The faster number of queue pairs is taken.
func TestPerftest(t *testing.T) {
	p := fakeTools(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	assert.Empty(t, p.missing([]string{"write", "read"}))
	for _, op := range []string{"write", "read"} {
		v, err := p.bandwidth(ctx, op, 65536, 500, 1)
		require.NoError(t, err)
		assert.InDelta(t, 100.5*(1<<20), v, 1)
		pairs, err := p.best(ctx, op, 65536, 500)
		require.NoError(t, err)
		assert.Equal(t, manyPairs, pairs)
	}
	us, err := p.latency(ctx, 8, 10)
	require.NoError(t, err)
	assert.InDelta(t, 11.25, us, 1e-9)
	assert.Equal(t, []string{"-d", "near0", "-i", "1", "-x", "3"}, of(p.near))
	assert.Equal(t, []string{"-d", "far0", "-i", "2"}, of(p.far), "InfiniBand has no GID to choose")

	for fail, want := range map[string]string{"server": "Couldn't bind", "client": "Completion with error", "row": "no row for 65536 bytes", "zero": "cannot measure time"} {
		t.Setenv("FAKE_PERFTEST", fail)
		_, err := p.bandwidth(ctx, "write", 65536, 500, 1)
		require.ErrorContains(t, err, want)
	}
	once := filepath.Join(t.TempDir(), "once")
	require.NoError(t, os.WriteFile(once, nil, 0o600))
	t.Setenv("FAKE_PERFTEST", once)
	us, err = p.latency(ctx, 8, 10)
	require.NoError(t, err)
	assert.InDelta(t, 11.25, us, 1e-9, "what prints 0 is run again")
	t.Setenv("PATH", t.TempDir())
	assert.Equal(t, latencyTool, p.missing([]string{"write"}))
	over, end := context.WithCancel(ctx)
	end()
	_, err = p.bandwidth(over, "write", 65536, 500, 1)
	require.Error(t, err)
}

func TestPerftestRows(t *testing.T) {
	for said, want := range map[string]string{
		"": "no row", " 65536 1 0.00": "no row", " 65536x 1 0.00 5 5\n": "no row", " 4096 500 0.00 56.1 0.000897\n": "no row",
	} {
		_, err := resultRow(said, 65536)
		require.ErrorContains(t, err, want, said)
	}
	row, err := resultRow(fmt.Sprintf(printed, "", "65536  500  0.00  56.13  0.000898"), 65536)
	require.NoError(t, err)
	v, err := column(row, 3)
	require.NoError(t, err)
	assert.InDelta(t, 56.13, v, 1e-9)
	_, err = column(row, 5)
	require.Error(t, err)
	_, err = column([]string{"1", "nan%"}, 1)
	require.Error(t, err)
}

// TestListens: who listens is found without a connection.
func TestListens(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		port := l.Addr().(*net.TCPAddr).Port
		there, err := listens(port)
		require.NoError(t, err)
		assert.True(t, there)
		require.NoError(t, l.Close())
		there, err = listens(port)
		require.NoError(t, err)
		assert.False(t, there)
	}
}

func TestMessageRecord(t *testing.T) {
	s := &messageSamples{speeds: []float64{90e6, 110e6, 100e6}, latency: []time.Duration{10e3, 20e3, 30e3}, cpu: time.Second, machine: 2 * time.Second, moved: 1e9,
		theirs: []float64{50e6, 200e6, 80e6}, how: "ib_write_bw -q 4", theirLatency: 11}
	r := messageRecord("write", 1<<20, depth, s)
	assert.Equal(t, []float64{0.1, 95.37, 0.08, 76.29, 1.25, 20, 30, 11, 1, 2},
		[]float64{r.GBps, r.MessagesPerS, *r.PerftestGBps, *r.PerftestMsgsPerS, *r.Ratio, *r.LatencyP50, *r.LatencyP99, *r.PerftestLatencyUs, r.CPUSecondsPGB, r.MachineCPU})
	assert.Equal(t, 3, r.Samples)
	s.theirs, s.theirLatency = nil, 0
	r = messageRecord("read", 1<<20, depth, s)
	assert.True(t, r.PerftestGBps == nil && r.Ratio == nil && r.PerftestHow == nil && r.PerftestLatencyUs == nil, "what was not measured is null")
	v := VerbsReport{Near: PortRecord{Device: "a", Port: 1, MTU: 1024}, Far: PortRecord{Device: "b", Port: 2, MTU: 4096}, Messages: []MessageRecord{r}}
	assert.Contains(t, v.text(), "a:1 to b:2, MTU 1024")
	assert.Contains(t, v.text(), "1MiB   read")
}

func TestWithin(t *testing.T) {
	assert.Equal(t, mostOps, within(time.Second, 0, fewest, mostOps))
	assert.Equal(t, fewest, within(time.Second, time.Hour, fewest, mostOps))
	assert.Equal(t, 160, within(time.Second, 100*time.Millisecond, fewest, mostOps))
}
