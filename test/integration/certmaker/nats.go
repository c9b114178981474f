package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvxfer/kvxfer/registry/natsaccess/accesstest"
)

// writeAccounts writes FOLDER=USER+USER: an operator's part of a NATS server's configuration, and its users' credentials.
func writeAccounts(dir, arg string) error {
	folder, users, ok := strings.Cut(arg, "=")
	if !ok {
		return fmt.Errorf("want nats:FOLDER=USER+USER")
	}
	at := filepath.Join(dir, filepath.FromSlash(folder))
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	o := accesstest.New()
	if err := os.WriteFile(filepath.Join(at, "server.conf"), []byte(o.ServerConfig()), 0o600); err != nil {
		return err
	}
	for _, u := range strings.Split(users, "+") {
		if _, err := o.Creds(at, u); err != nil {
			return err
		}
	}
	return nil
}
