// Package tapwire joins two TAP devices of one machine by copying Ethernet frames between them, so that tests hold, lose, double,
// delay and reorder the packets of SoftRoCE devices on top of them, deterministically where netem cannot: both queue pairs and the
// wire between them are in one process. For tests only.
//
// Why not something simpler: rxe's own loop-back runs inside post_send, so nothing is ever in flight; netem and sch_plug hold
// packets by device and time, not by what a test knows.
//
// The machine must send between its own two addresses over the devices; test/rdma/network.py says how (one_script).
//
// Invariants: frames that are not RoCE are passed on at once and in order (TestOthersPass); with no fault and no hold, RoCE frames
// too (TestNothingIsTouched); what is held comes out in the order it came (TestHold); one seed gives one fate to a sequence of
// frames (TestSeedRepeats); Close leaves no goroutine and no descriptor (every test).
package tapwire
