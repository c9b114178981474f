package config

import (
	"bufio"
	"fmt"
	"io"
)

// Usage prints every setting with its flag, variable, default, meaning and what is allowed. Errors of w are not told:
// there is nowhere to tell them.
func Usage(w io.Writer) {
	b := bufio.NewWriter(w)
	defer func() { _ = b.Flush() }()
	fmt.Fprint(b, `Usage: kvxfer serve [--SETTING VALUE]...

Runs this node's daemon until SIGTERM or SIGINT, which drains; a second one ends the draining. A setting is taken from its flag, else from its variable, else from the
file, else it has its default. The file is one JSON object whose keys are the flags without dashes in front, for example
{"node": "n0", "lanes": 8, "allow-uid": [1000, 1001]}.

`)
	row := func(flag, arg, env, def, meaning, allowed string) {
		fmt.Fprintf(b, "  --%-20s %s\n      %s\n      default: %s\n      allowed: %s\n", flag+" "+arg, env, meaning, def, allowed)
	}
	row(configKey, "PATH", envName(configKey), "none", "the file; not a key of the file itself", allowedFor(configKey))
	for i := range settings {
		s := &settings[i]
		def := s.def
		if s.defText != "" {
			def = s.defText
		}
		row(s.name, s.arg, envName(s.name), def, s.meaning, s.allowed)
	}
	fmt.Fprint(b, "\nExit codes: 0 ended by a signal; 1 it did not start or cannot go on, and the log says why; 2 wrong settings.\n")
}
