package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"

	"github.com/kvxfer/kvxfer/internal/version"
	"github.com/kvxfer/kvxfer/internal/wire"
)

func printVersion(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("kvxfer version", flag.ContinueOnError)
	fs.SetOutput(stderr)
	asJSON := fs.Bool("json", false, "print a JSON object")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if fs.NArg() > 0 {
		fmt.Fprintf(stderr, "kvxfer version: unexpected argument %q\n", fs.Arg(0))
		return 2
	}
	info := struct {
		Version     string `json:"version"`
		Commit      string `json:"commit,omitempty"`
		Go          string `json:"go"`
		Platform    string `json:"platform"`
		MinProtocol int    `json:"min_protocol"`
		MaxProtocol int    `json:"max_protocol"`
	}{version.Version, version.Commit(), runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH, wire.MinVersion, wire.MaxVersion}
	if *asJSON {
		_ = json.NewEncoder(stdout).Encode(info)
		return 0
	}
	fmt.Fprintf(stdout, "kvxfer %s (%s, %s, protocol %d to %d)\n", info.Version, info.Go, info.Platform, info.MinProtocol, info.MaxProtocol)
	return 0
}
