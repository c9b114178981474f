// Package sysfs reads what the kernel tells of RDMA devices below /sys, without opening one and without libibverbs: devices,
// ports, GIDs, partition keys, hardware counters and, of RoCE, what is readable of flow control.
//
// The file tree is an fs.FS of "/", so that a test, or doctor, can be another machine; package sysfstest makes such trees.
//
// Terms. A port's interface is the network interface that a RoCE port sends through. A counter is a file below hw_counters (the
// device's own names, which differ by driver) or counters (InfiniBand's names).
//
// What is missing, empty or unreadable is left out and never guessed: a table has entries that the kernel refuses to show
// (EINVAL of an empty one), and a device may go while it is read. One thing is derived: sysfs has no MTU of an RDMA port, so that
// of an Ethernet port is computed from its interface's, as the kernel does (EthernetMTU). A queried MTU is better than it.
//
// An interface of another network namespace is none of this process: its name is not told, and the GIDs on it are told with an
// empty one, since they carry addresses that this namespace does not have.
//
// Invariants, each with the test that holds it:
//   - devices, ports and GIDs are told as the tree has them, in order and without empty entries: TestDevices, TestTableWithHoles
//   - a tree without RDMA is no device and no error: TestNoDevices
//   - the MTU follows the kernel's rule: TestEthernetMTU
//   - no text in these files, whatever it is, makes more of a device than what it says: FuzzTexts, FuzzTree
//   - drivers' counters come under one name each, and none twice: TestCounters, TestTraffic;
//     docs/metrics.md says which: TestDocsTellEvents
//   - why a GID table is empty is said in words: TestWhyNoGIDs
package sysfs
