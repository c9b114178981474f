// Package config is the configuration of `kvxfer serve`: one table of settings, read from flags, the environment and a
// JSON file, checked before anything starts.
//
// Terms. A setting has one name: --name is its flag, KVXFER_NAME (upper case, "-" as "_") its variable, "name" its key in
// the file. A source is where a value came from: "--listen", "KVXFER_LISTEN", "kvxfer.json:3" or "default".
//
// The file is one JSON object, whose path is the setting config (flag or variable only). Values are strings as on the
// command line; numbers, booleans and, for lists, arrays are taken too. An empty variable counts as unset, since scripts
// often cannot unset one; an empty flag is a value.
//
// Invariants, each with the test that holds it:
//   - flags > environment > file > defaults, for every setting: TestPrecedence
//   - every error names the setting, its source and what is allowed, and all come at once: TestErrorsNameFieldAndSource,
//     TestAllErrorsAtOnce
//   - a key of the file that is not in the table is refused by name and line: TestFileErrors
//   - no input makes a parser panic: FuzzFile, FuzzAddress
//   - an interface gives the same address whatever the order the kernel lists them in: TestInterfaceChoice
//   - a daemon that no peer could dial does not start: TestAdvertise
//   - a password is never repeated, and never taken from the command line: TestPasswords
//   - the help names every setting: TestUsage
package config
