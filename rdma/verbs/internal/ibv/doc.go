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
//     the completion queues; those of others are kept and come first from Next (TestDeviceResetDropsItsCompletions). What it had queued is not
//     sent when it is connected anew (TestDeviceResetDropsWhatIsQueued).
//   - A completion queue cannot overrun, which would end every queue pair on it: a queue pair has room for all that it can queue,
//     signaled or not, because a failing one flushes everything (TestRooms, TestDeviceFlushFits).
//   - Recv is right for failed entries too, which do not say what they were: sends and receives complete on queues of their own.
//   - Nothing waits for a reader of events: they are acknowledged in the call that reads them.
//   - Next and NextEvent end when the device is closed (TestDeviceCloseEndsWaits), and everything is typed when it is removed
//     (TestDeviceRemoved).
//   - Close reports what the device refused to destroy; only of a device that was removed is that no failure, because its names
//     in /sys go after the kernel has torn everything down (TestRemoved).
//   - The data path does not allocate: BenchmarkPostAndPoll, TestDevicePostAllocatesNothing.
//
// What devices do beyond the manual pages:
//   - rdma_rxe (6.1) compares a request through a window with the registration's bounds, not the window's: there a window's key
//     ends with its invalidation, but does not bound.
//   - rdma_rxe lets the destruction of a queue pair wait, up to a minute, for windows bound on it: invalidate or close them first,
//     as the device's Close does.
//   - rdma_rxe does not flush receives that are posted to a queue pair in error, and frees a send request's place before its
//     completion was polled, so that only MaxSignaled, which the caller keeps, bounds what is in a completion queue.
//   - rdma_rxe's library queues a request that is posted in RESET, says EINVAL, and sends it once the queue pair is connected: here
//     nothing reaches it then.
//   - rdma_rxe has no way to take a device from its users: its removal waits until they close it, and they are not told. So NextEvent
//     looks whether the device is still there, and says DeviceFatal when it is not; who gets that must close the device.
//   - rdma_rxe neither moves nor gives up what waits below it for a network device that takes nothing, and lets the destruction of
//     such a queue pair wait for up to a minute. A reset does not wait.
package ibv
