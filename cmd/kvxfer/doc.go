// Command kvxfer runs a node of the KV-cache transfer service and looks at what nodes did.
//
//	kvxfer serve      run this host's daemon
//	kvxfer nodes      list the nodes
//	kvxfer caches     list the caches of all nodes
//	kvxfer blocks     list a cache's blocks
//	kvxfer leases     list the leases of this node
//	kvxfer transfers  list the transfers of this node; what one waits for
//	kvxfer drain      have this host's daemon start nothing new
//	kvxfer log-level  say or set what the daemon logs
//	kvxfer trace      list and show traces from trace files
//	kvxfer doctor     say what this host can do, and what the way to a node carries
//	kvxfer support    gather what helps to find a fault, without secrets
//	kvxfer bench      measure transfers beside this machine's limits
//	kvxfer version    say which build this is
//
// Every command has --help. Exit codes: 0 done, 1 failed, 2 wrong usage.
package main
