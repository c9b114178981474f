// Command confine runs a command that may lock so much memory and no more, also as root: a machine of test/rdma has no other tool
// that takes the capability away which knows no limit.
//
//	confine BYTES COMMAND ARGUMENT...
package main
