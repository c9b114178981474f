package socketpath

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestDefaults(t *testing.T) {
	assert.Equal(t, "/run/kvxfer/kvxfer.sock", Default(0, "/run/user/0"))
	assert.Equal(t, "/run/user/7/kvxfer/kvxfer.sock", Default(7, "/run/user/7"))
	assert.Equal(t, "/tmp/kvxfer-7/kvxfer.sock", Default(7, ""))
	assert.Equal(t, "/tmp/kvxfer-7/kvxfer.sock", Default(7, "relative"))
	env := map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}
	assert.Equal(t, "/run/user/7/kvxfer/kvxfer.sock", Client(7, func(k string) string { return env[k] }))
	env[Variable] = "/a/b"
	assert.Equal(t, "/a/b", Client(7, func(k string) string { return env[k] }))
}
