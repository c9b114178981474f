// Command gen writes what is generated from the error table: Go constants, the sentinels of the Go SDK,
// Python exceptions, docs/errors.md and a page for each error.
// Run it through `go generate ./internal/fault`.
package main

import (
	"bytes"
	"fmt"
	"go/format"
	"log"
	"os"
	"path/filepath"

	"github.com/kvxfer/kvxfer/internal/fault/gen/render"
)

func main() {
	log.SetFlags(0)
	root, err := repoRoot()
	if err != nil {
		log.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(root, "internal/fault/table.json"))
	if err != nil {
		log.Fatal(err)
	}
	advice, err := os.ReadFile(filepath.Join(root, "internal/fault/advice.json"))
	if err != nil {
		log.Fatal(err)
	}
	files, err := render.All(raw, advice)
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range files {
		if filepath.Ext(name) == ".go" {
			if text, err = format.Source(text); err != nil {
				log.Fatal(err)
			}
		}
		path := filepath.Join(root, name)
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			log.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o644); err != nil {
			log.Fatal(err)
		}
		fmt.Println("wrote", name)
	}
}

// repoRoot walks up to the folder that holds go.mod.
func repoRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("no go.mod above %s", dir)
		}
		dir = up
	}
}
