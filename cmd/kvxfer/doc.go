// Command kvxfer runs a node of the KV-cache transfer service and looks at what nodes did.
//
//	kvxfer serve    run this host's daemon
//	kvxfer trace    list and show traces from trace files
//	kvxfer bench    measure transfers beside this machine's limits
//	kvxfer version  say which build this is
//
// Every command has --help. Exit codes: 0 done, 1 failed, 2 wrong usage.
package main
