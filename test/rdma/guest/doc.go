// Command guest is PID 1 of the virtual machines of test/rdma: it mounts what a process expects, loads the kernel modules of
// /modules/order and does what the host asks over one virtio-serial port. It knows nothing of what the machine is for: networks
// and devices are commands that test/rdma/network.py sends like any other.
//
// The port is one end of a socket pair between QEMU and the test's process, so nobody else on the host can reach it and no
// secret is needed. When its other end closes, the machine powers off: a machine never outlives its test.
//
// Terms. A frame is a length (of what follows it, 4 bytes, big endian), a stream number (4), a kind (1) and a payload. The host chooses
// stream numbers; each names one command or one file operation and is answered by one frame of kind result, after which it may be
// used again.
//
// PID 1 itself only collects ended processes; the agent is its child. Otherwise collecting orphans would take the exit status
// away from whoever waits for a command.
//
// test/rdma/test_rig.py holds all of this: test_many_commands_at_once, test_signals, test_files, test_ends_with_its_host.
package main
