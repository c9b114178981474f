// Package version says which build this is.
package version

import "runtime/debug"

// Version is set by the Makefile from the file VERSION.
var Version = "0.0.0-dev"

// Commit is the revision that the build was made from, where the toolchain knew it.
func Commit() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
