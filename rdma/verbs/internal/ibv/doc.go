// Package ibv implements rdma/verbs/nic on libibverbs, the library of the Linux RDMA subsystem, which it loads when the first
// device is opened: the program builds without rdma-core and starts on hosts that have none. Without cgo there is a Host that
// lists devices and opens none.
//
// Terms are those of package nic and of the ibv_* manual pages. abi.h declares the library's structures in words of its own;
// the C of this package is thin: one call a batch, no callback into Go, no allocation per request.
//
// How it keeps nic's rules, and what holds each (tests named Device* need a device, named by KVXFER_RDMA_DEVICES):
//   - The declared structures are the library's: TestABI. Go's requests and completions have the layout that C reads: the
//     constants of layout.go do not compile otherwise.
//   - What is missing is said, with what to install or load: TestMissingLibrary, TestMissingFunction, TestOpenSaysWhatIsMissing.
//   - C never sees a destroyed queue pair: each has a lock, held while C works on it (TestDeviceDestroyUnderPosts).
//   - Nothing of a queue pair completes after Reset or Destroy returned, also under a reused number: its entries are taken out of
//     the completion queues; those of others are kept and come first from Next (TestDeviceResetDropsItsCompletions).
//   - A completion queue cannot overrun, which would end every queue pair on it: a queue pair has room for all that it can queue,
//     signaled or not, because a failing one flushes everything (TestRooms, TestDeviceFlushFits).
//   - Recv is right for failed entries too, which do not say what they were: sends and receives complete on queues of their own.
//   - Nothing waits for a reader of events: they are acknowledged in the call that reads them.
//   - Next and NextEvent end when the device is closed (TestDeviceCloseEndsWaits), and everything is typed when it is removed
//     (TestDeviceRemoved).
//   - Close reports what the device refused to destroy; only of a device that is gone is that no failure, because the kernel
//     has torn down everything before it says so.
//   - The data path does not allocate: BenchmarkPostAndPoll, TestDevicePostAllocatesNothing.
package ibv
