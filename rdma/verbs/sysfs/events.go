package sysfs

import (
	"io/fs"
	"math"
)

// Event is what a counter counts, by one name for all drivers.
type Event string

// Events.
const (
	Retransmission   Event = "retransmission"
	Timeout          Event = "timeout"
	SequenceNAK      Event = "sequence_nak"
	OutOfSequence    Event = "out_of_sequence"
	Duplicate        Event = "duplicate"
	ReceiverNotReady Event = "receiver_not_ready"
	NoReceive        Event = "no_receive"
	RetriesExceeded  Event = "retries_exceeded"
	Refused          Event = "refused"
	RefusedByPeer    Event = "refused_by_peer"
	ECNMarked        Event = "ecn_marked"
	CNPSent          Event = "cnp_sent"
	CNPHandled       Event = "cnp_handled"
	CNPIgnored       Event = "cnp_ignored"
	ReceiveError     Event = "receive_error"
	Discarded        Event = "discarded"
	LinkDown         Event = "link_down"
)

// Meaning of an event, and the counters that count it: InfiniBand's, mlx5's and rxe's.
type Meaning struct {
	Event    Event
	Text     string
	Loss     bool // a packet was lost, or was taken for lost
	Counters []string
}

// Events lists them all, in the order in which people are told of them.
var Events = []Meaning{
	{Retransmission, "sent again", true, []string{"roce_adp_retrans", "completer_retry_err"}},
	{Timeout, "no answer in time", true, []string{"local_ack_timeout_err", "roce_adp_retrans_to"}},
	{SequenceNAK, "the peer missed a packet", true, []string{"packet_seq_err", "implied_nak_seq_err", "rcvd_seq_err"}},
	{OutOfSequence, "a packet of the peer was missed", true, []string{"out_of_sequence", "out_of_seq_request"}},
	{Duplicate, "came again", false, []string{"duplicate_request"}},
	{ReceiverNotReady, "the peer had no receive posted", false, []string{"rnr_nak_retry_err", "rcvd_rnr_err"}},
	{NoReceive, "no receive was posted here", false, []string{"out_of_buffer", "send_rnr_err"}},
	{RetriesExceeded, "given up", true, []string{"retry_exceeded_err", "retry_rnr_exceeded_err"}},
	{Refused, "a peer's key was not valid here, as after a fence", false, []string{"resp_remote_access_errors"}},
	{RefusedByPeer, "an own key was not valid at the peer", false, []string{"req_remote_access_errors"}},
	{ECNMarked, "marked by a switch as congested", false, []string{"np_ecn_marked_roce_packets"}},
	{CNPSent, "congestion told to the sender", false, []string{"np_cnp_sent"}},
	{CNPHandled, "slowed down as told", false, []string{"rp_cnp_handled"}},
	{CNPIgnored, "told to slow down, and did not", false, []string{"rp_cnp_ignored"}},
	{ReceiveError, "damaged on the wire", true, []string{"port_rcv_errors", "rx_icrc_encapsulated"}},
	{Discarded, "not sent, because the link was down or congested", true, []string{"port_xmit_discards"}},
	{LinkDown, "the link went down", false, []string{"link_downed"}},
}

// Traffic of a port since its counters began. Where nothing counts something, Known says so by its absence.
type Traffic struct {
	SentBytes, ReceivedBytes     uint64
	SentPackets, ReceivedPackets uint64
	BytesKnown, PacketsKnown     bool
	Events                       map[Event]uint64 // those that the device counts
}

// dataUnit: InfiniBand's counters of data are of 32-bit words, RoCE's too.
const dataUnit = 4

// ReadTraffic makes one account of a port's counters.
func ReadTraffic(root fs.FS, dev string, port int) Traffic {
	t := Traffic{Events: map[Event]uint64{}}
	values := map[string]uint64{}
	for _, c := range Counters(root, dev, port) {
		values[c.Name] = c.Value
	}
	sent, known := values["port_xmit_data"]
	received, known2 := values["port_rcv_data"]
	if t.BytesKnown = known && known2; t.BytesKnown {
		t.SentBytes, t.ReceivedBytes = times(sent, dataUnit), times(received, dataUnit)
	}
	for _, names := range [][2]string{{"port_xmit_packets", "port_rcv_packets"}, {"sent_pkts", "rcvd_pkts"}} {
		sent, known := values[names[0]]
		received, known2 := values[names[1]]
		if known && known2 && !t.PacketsKnown {
			t.SentPackets, t.ReceivedPackets, t.PacketsKnown = sent, received, true
		}
	}
	for _, m := range Events {
		for _, name := range m.Counters {
			if v, counted := values[name]; counted {
				t.Events[m.Event] = plus(t.Events[m.Event], v)
			}
		}
	}
	return t
}

// Lost is how many packets were lost or taken for lost, by the events that say so.
func (t *Traffic) Lost() (n uint64) {
	for _, m := range Events {
		if m.Loss {
			n = plus(n, t.Events[m.Event])
		}
	}
	return n
}

func plus(a, b uint64) uint64 {
	if a > math.MaxUint64-b {
		return math.MaxUint64
	}
	return a + b
}

func times(a, b uint64) uint64 {
	if a > math.MaxUint64/b {
		return math.MaxUint64
	}
	return a * b
}
