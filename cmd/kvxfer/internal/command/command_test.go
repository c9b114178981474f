package command

import (
	"bytes"
	"encoding/json"
	"flag"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func made() (*Command, *bytes.Buffer, *bytes.Buffer) {
	var out, err bytes.Buffer
	return &Command{Name: "things", Help: "help of things\n", Stdout: &out, Stderr: &err}, &out, &err
}

func TestFlagsAnywhere(t *testing.T) {
	for _, args := range [][]string{{"--json", "--n", "3", "a", "b"}, {"a", "--n", "3", "b", "--json"}, {"a", "b", "--json", "--n=3"}} {
		c, _, _ := made()
		fs := flag.NewFlagSet("x", flag.ContinueOnError)
		n := fs.Int("n", 0, "")
		names, _, done := c.Parse(fs, args)
		require.False(t, done)
		assert.Equal(t, []string{"a", "b"}, names)
		assert.True(t, c.JSON)
		assert.Equal(t, 3, *n)
	}
	c, out, _ := made()
	_, code, done := c.Parse(flag.NewFlagSet("x", flag.ContinueOnError), []string{"a", "--help"})
	assert.True(t, done)
	assert.Equal(t, OK, code)
	assert.Equal(t, "help of things\n", out.String())
	c, _, err := made()
	_, code, done = c.Parse(flag.NewFlagSet("x", flag.ContinueOnError), []string{"--what"})
	assert.True(t, done)
	assert.Equal(t, Usage, code)
	assert.Contains(t, err.String(), "-what")
}

func TestTableLinesUp(t *testing.T) {
	tab := NewTable("NAME", "STATE")
	tab.Row("grün", "ok")
	tab.Row("a\x1b[2Jb", "")
	tab.Row("c")
	assert.Equal(t, "NAME    STATE\ngrün    ok\na?[2Jb  -\nc       -\n", tab.String())
}

func TestFailureBothWays(t *testing.T) {
	e := &fault.Error{Code: fault.PeerUnreachable, Op: "probe", Peer: "n1", Detail: "refused"}
	c, _, err := made()
	assert.Equal(t, Failed, c.Fail(e))
	assert.Equal(t, "kvxfer things: probe: PeerUnreachable peer=\"n1\": refused\n", err.String())
	c, _, err = made()
	c.JSON = true
	assert.Equal(t, Failed, c.Fail(e))
	var body struct{ Error fault.Wire }
	require.NoError(t, json.Unmarshal(err.Bytes(), &body))
	assert.Equal(t, fault.PeerUnreachable, body.Error.Code)
	assert.Equal(t, "n1", body.Error.Peer)
}

func TestSizesAndTimes(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 1 << 30: "1.0 GiB", 1<<64 - 1: "16.0 EiB"} {
		assert.Equal(t, want, Bytes(n))
	}
	assert.Equal(t, "<1ms", Millis(0))
	assert.Equal(t, "1.5s", Millis(1500))
	assert.Equal(t, "2m5s", Millis(125_300))
}
