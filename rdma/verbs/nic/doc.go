// Package nic is what the verbs provider asks of an RDMA stack: devices, protection, queue pairs, completions. It holds no
// implementation. rdma/verbs/internal/ibv implements it on libibverbs; rdma/verbs/internal/softnic simulates it inside one
// process, with packets that can be held, lost, doubled and reordered, so that the provider's own logic is tested on every machine.
//
// Terms are those of libibverbs (ibv_* manual pages): memory region (MR), memory window (MW), queue pair (QP), packet sequence
// number (PSN), work request (WR), scatter/gather entry (SGE). All queue pairs are reliable connections (RC).
//
// Rules that both implementations keep; each has tests of its own, and rdma/verbs runs the fabric's conformance suite over both:
//   - After QP.Reset or QP.Destroy returned nil, no packet that was sent to that queue pair changes a byte of memory, and the
//     device reads no byte of memory for it.
//   - After the successful completion of an invalidation, no packet that names the window's key changes a byte.
//   - Completions of one QP's send queue come in the order of its requests; a successful one says the same of all before it.
//   - A RECEIVE completes after the bytes of all WRITEs that the peer posted before its SEND on that queue pair are visible.
//   - What a QP still had queued when it was reset or destroyed completes no more; completions of an unknown QP number may still
//     come and mean nothing.
//
// Names of devices are ordered as people do, one order for all: TestCompareNames, FuzzCompareNames.
package nic
