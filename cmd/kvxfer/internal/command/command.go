package command

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// Exit codes of every command.
const (
	OK     = 0
	Failed = 1
	Usage  = 2
)

// Command is one invocation: its name, its help and where it writes.
type Command struct {
	Name   string // as typed after kvxfer: "nodes", "transfers show"
	Help   string // all of --help
	Stdout io.Writer
	Stderr io.Writer
	JSON   bool // --json was given; Parse declares the flag
}

// Parse takes flags before and after the arguments; fs holds the command's own flags. done says that the command has
// ended with code: help was asked for, or the usage is wrong.
func (c *Command) Parse(fs *flag.FlagSet, args []string) (names []string, code int, done bool) {
	fs.SetOutput(io.Discard)
	fs.BoolVar(&c.JSON, "json", false, "")
	for {
		switch err := fs.Parse(args); {
		case errors.Is(err, flag.ErrHelp):
			fmt.Fprint(c.Stdout, c.Help)
			return nil, OK, true
		case err != nil:
			return nil, c.Misused("%v", err), true
		}
		if fs.NArg() == 0 {
			return names, OK, false
		}
		names = append(names, fs.Arg(0))
		args = fs.Args()[1:]
	}
}

// Misused says what is wrong with the arguments and returns the exit code.
func (c *Command) Misused(format string, args ...any) int {
	fmt.Fprintf(c.Stderr, "kvxfer %s: %s\n\n%s", c.Name, fmt.Sprintf(format, args...), c.Help)
	return Usage
}

// Fail reports err, in words or as JSON, and returns the exit code.
func (c *Command) Fail(err error) int {
	if c.JSON {
		_ = json.NewEncoder(c.Stderr).Encode(map[string]any{"error": fault.ToWire(err)})
	} else {
		// An error of this project begins with its name, as the line does.
		fmt.Fprintf(c.Stderr, "kvxfer %s: %s\n", c.Name, strings.TrimPrefix(err.Error(), "kvxfer: "))
	}
	return Failed
}

// PrintJSON writes one JSON value.
func (c *Command) PrintJSON(v any) int {
	e := json.NewEncoder(c.Stdout)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return c.Fail(err)
	}
	return OK
}
