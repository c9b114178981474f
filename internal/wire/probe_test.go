package wire

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// What is asked of a daemon by probes and reports is refused by the field that is out of range.
func TestProbesAreChecked(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	probe := func(f func(*Probe)) *Probe {
		p := &Probe{Node: "n", Provider: "tcp", Bytes: MaxProbeBytes, TimeoutMillis: MaxStepMillis}
		f(p)
		return p
	}
	open := func(f func(*ProbeOpen)) *ProbeOpen {
		p := &ProbeOpen{Bytes: 1, Seed: make([]byte, ProbeSeedBytes), TTLMillis: MaxProbeMillis}
		f(p)
		return p
	}
	ran := func(f func([]ProbeStep)) *ProbeRan {
		p := &ProbeRan{Steps: []ProbeStep{{Op: ModeWrite}, {Op: ModeRead}}}
		f(p.Steps)
		return p
	}
	for _, c := range []struct {
		body  interface{ Validate() error }
		field string
	}{
		{probe(func(*Probe) {}), ""},
		{probe(func(p *Probe) { p.Node = "a/b" }), "node"},
		{probe(func(p *Probe) { p.Provider = "" }), "provider"},
		{probe(func(p *Probe) { p.Bytes = 0 }), "bytes"},
		{probe(func(p *Probe) { p.Bytes++ }), "bytes"},
		{probe(func(p *Probe) { p.TimeoutMillis++ }), "timeout_ms"},
		{open(func(*ProbeOpen) {}), ""},
		{open(func(p *ProbeOpen) { p.Seed = nil }), "seed"},
		{open(func(p *ProbeOpen) { p.Bytes = 1 << 62 }), "bytes"},
		{open(func(p *ProbeOpen) { p.TTLMillis++ }), "ttl_ms"},
		{&ProbeRun{Provider: "tcp", TimeoutMillis: 1}, ""},
		{&ProbeRun{Provider: long, TimeoutMillis: 1}, "provider"},
		{&ProbeRun{Provider: "tcp", TimeoutMillis: -1}, "timeout_ms"},
		{ran(func([]ProbeStep) {}), ""},
		{&ProbeRan{}, "steps"},
		{ran(func(s []ProbeStep) { s[1].Op = "look" }), "mode"},
		{ran(func(s []ProbeStep) { s[0].Provider = long }), "provider"},
		{ran(func(s []ProbeStep) { s[0].Reason = long }), "provider_reason"},
		{&Report{What: ReportGoroutines}, ""},
		{&Report{What: long}, "what"},
		{&ScatterRequest{Mode: ModeRead, TimeoutMillis: 1, TransferIdentity: TransferIdentity{Provider: "a b"}}, "provider"},
		{&PushRequest{TimeoutMillis: 1, TransferIdentity: TransferIdentity{Provider: long}}, "provider"},
	} {
		err := c.body.Validate()
		if c.field == "" {
			require.NoError(t, err, "%T", c.body)
			continue
		}
		require.ErrorIs(t, err, fault.ErrInvalidArgument, "%T %s", c.body, c.field)
		assert.Equal(t, c.field, fault.From("", err).Field)
		assert.Less(t, len(err.Error()), 512)
	}
}
