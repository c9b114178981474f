// Package config reads the settings of `kvxfer serve`: flags, then KVXFER_* environment, then the file, then defaults.
//
// # Terms
//
// A setting is one row of the table in settings.go. Its name is the flag's (--state-dir), the key in the file
// ("state-dir") and, in capitals with underscores, the environment's (KVXFER_STATE_DIR). Its source is where its value
// was set; every error says it. An address is IP:PORT, [IPV6]:PORT or NAME:PORT; where one is wanted an interface's name
// may stand for it, and the interface's address is what the configuration then holds.
//
// # Rules
//
// A source as a whole outranks the next: a list is replaced, not added to, and a value that is outranked is not looked
// at. A flag given twice counts the last time. An empty variable counts as not set, since templates leave such behind; an
// empty flag or file value is a value. Variables that are no setting's are left alone (a Kubernetes service called
// kvxfer puts KVXFER_SERVICE_HOST and others into every container), unknown flags and file keys are refused.
//
// There is no default path for the file: what a daemon runs with is seen from its command line and environment. Relative
// paths count from the working directory, wherever they were set.
//
// A program that runs a node inside itself gives a Config with New: the same table checks it, and nothing else is read.
//
// Names are resolved once, here, so that a mistyped interface ends the start and not the first transfer.
//
// # Invariants, each with the test that holds it
//
//   - the order of the sources holds for every setting: TestPrecedence
//   - every wrong value is named with its setting, source and what is allowed: TestWrongValues
//   - all errors are reported at once: TestAllErrorsAtOnce
//   - flags, environment, file keys and usage are the same table: TestUsageNamesEverySetting, TestFileKeys
//   - a node that others reach has TLS, or was told that it needs none: TestPeersBeyondTheHost
//   - the embedded registry asks others for credentials, or was told that it need not: TestRegistryBeyondTheHost
//   - a password in a registry's URL is in no error and no log: TestNoSecretIsRepeated
//   - a list of providers that was set is known from the default: TestNamedProviders
//   - a program's configuration passes the same table, and no environment or file: TestNewChecksWhatAProgramGives,
//     TestEverySettingHasAField
//   - an accepted address is one that net.Dial understands and that parses to itself: FuzzAddress
//   - no file makes the parser fail in another way than by an error with its path: FuzzFile
package config
