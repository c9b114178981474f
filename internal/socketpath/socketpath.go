// Package socketpath says where a host's daemon listens for its clients when nobody says otherwise. Daemon, commands and
// both SDKs must agree on it: TestDefaults holds the table, which sdk/python's _connect.py repeats.
package socketpath

import (
	"path/filepath"
	"strconv"
)

// Variable is the environment variable that names the socket for clients and daemon.
const Variable = "KVXFER_SOCKET"

// Default is the path where nothing names one: by user number and $XDG_RUNTIME_DIR.
func Default(uid int, runtimeDir string) string {
	switch {
	case uid == 0:
		return "/run/kvxfer/kvxfer.sock"
	case filepath.IsAbs(runtimeDir):
		return filepath.Join(runtimeDir, "kvxfer/kvxfer.sock")
	}
	return "/tmp/kvxfer-" + strconv.Itoa(uid) + "/kvxfer.sock"
}

// Client is where a client looks: Variable, else Default. getenv is os.Getenv.
func Client(uid int, getenv func(string) string) string {
	if p := getenv(Variable); p != "" {
		return p
	}
	return Default(uid, getenv("XDG_RUNTIME_DIR"))
}
