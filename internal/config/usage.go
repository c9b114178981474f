package config

import (
	"fmt"
	"io"
	"strings"
)

const usageHead = `Usage: kvxfer serve [--NAME VALUE]...

A value comes from the flag, else from the variable, else from the file, else it is the default. Lists are separated by
commas; a flag of a list may be repeated. The file is a JSON object whose keys are the names below.

`

// Usage writes the help of `kvxfer serve`.
func Usage(w io.Writer) error {
	var b strings.Builder
	b.WriteString(usageHead)
	row := func(name, help, shown string) {
		fmt.Fprintf(&b, "  --%-15s %s\n  %-17s %s", name, help, "", EnvName(name))
		if shown != "" {
			fmt.Fprintf(&b, ", default: %s", shown)
		}
		b.WriteByte('\n')
	}
	row(configName, "the configuration file", "none")
	for i := range settings {
		s := &settings[i]
		help := s.help
		if s.list {
			help += " (list)"
		}
		row(s.name, help, s.shown)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
