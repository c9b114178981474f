// Package sysfstest makes file trees as the kernel shows RDMA devices in /sys, for tests of what reads them.
//
// Invariant: a device reads back as it was described, but for the MTU, which an interface's follows: sysfs's TestDevices.
package sysfstest
