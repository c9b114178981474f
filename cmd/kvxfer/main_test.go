package main

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func call(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = run(args, &out, &err)
	return code, out.String(), err.String()
}

func TestUsage(t *testing.T) {
	code, _, stderr := call()
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "kvxfer serve")

	code, _, stderr = call("fly")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, `no command "fly"`)

	for _, help := range []string{"help", "--help", "-h"} {
		code, stdout, _ := call(help)
		assert.Zero(t, code)
		assert.Contains(t, stdout, "Exit codes")
	}
	for _, a := range actions {
		for _, args := range [][]string{{a.name, "--help"}, {"help", a.name}} {
			code, stdout, stderr := call(args...)
			assert.Zero(t, code, args)
			assert.Contains(t, stdout, "kvxfer "+a.name, args)
			assert.Contains(t, stdout, "Exit codes", args)
			assert.Empty(t, stderr, args)
		}
	}
	code, _, stderr = call("help", "fly")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, `no command "fly"`)
	code, stdout, _ := call("serve", "--help")
	assert.Zero(t, code)
	assert.Contains(t, stdout, "KVXFER_STATE_DIR")
}

func TestVersion(t *testing.T) {
	code, stdout, _ := call("version", "--json")
	require.Zero(t, code)
	var info map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &info))
	assert.NotEmpty(t, info["version"])
	assert.EqualValues(t, 1, info["max_protocol"])

	code, _, _ = call("version", "extra")
	assert.Equal(t, 2, code)
	code, _, _ = call("version", "--nope")
	assert.Equal(t, 2, code)
}

func TestServeNamesEveryWrongSetting(t *testing.T) {
	code, _, stderr := call("serve", "--lanes", "99", "--node", "no/slash")
	assert.Equal(t, 2, code)
	assert.Contains(t, stderr, "lanes")
	assert.Contains(t, stderr, "node")
	assert.Contains(t, stderr, "--help")
}
