// Command latewriter is the clients of the late-write test between virtual machines, which have no Python: test/rdma conducts it.
//
//	latewriter owner  --socket PATH [--memory FILE] ...   leases memory, takes it back, and watches every byte of it
//	latewriter source --socket PATH ...                   writes and offers memory that peers read
//	latewriter memory --bytes N                           holds memory for an owner that is to be killed, and watches it
//
// It reads requests from standard input, one JSON object a line, and answers each by a line on standard output in any order:
// {"id": 7, "do": "push", ...} by {"id": 7, "ok": ...} or {"id": 7, "error": "...", "code": "..."}. A line without an id is an event; {"event":
// "late", ...} says that bytes changed in memory that was not leased. It ends with its standard input.
//
// Terms. A victim is a transfer whose memory is taken back; a way is how. A unit is a block of the cache or as many bytes of
// the raw region. Marks are bytes of 128 and above: owners fill with them what is theirs, no source holds any. All choices are the conductor's, so
// this program has no randomness.
//
// Invariants, each with the test that holds it:
//   - a byte that changes outside of leased units is found, counted once and told; leased ones are not looked at:
//     TestLateBytesAreFound
//   - memory counts as taken only when the SDK says released, and is marked at once: TestVolley
//   - what ended well is compared with what the source had: TestVolley, TestContentDiffers
package main
