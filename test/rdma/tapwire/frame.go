package tapwire

import "encoding/binary"

// roce is the UDP port of RoCE v2.
const roce = 4791

// Frame is what the wire knows of an Ethernet frame.
type Frame struct {
	From  int  // the end it comes from: 0 or 1
	Bytes int  // its length, with the Ethernet header
	RoCE  bool // RoCE v2 over IPv4 or IPv6; the fields below are zero for others

	Opcode  uint8  // of the base transport header
	DestQPN uint32 // 24 bits
	PSN     uint32 // 24 bits
}

// parse reads as much of an Ethernet frame as a Frame says. What is cut short is not RoCE.
func parse(from int, b []byte) Frame {
	f := Frame{From: from, Bytes: len(b)}
	const ether = 14
	if len(b) < ether {
		return f
	}
	var udp []byte
	switch ip := b[ether:]; binary.BigEndian.Uint16(b[12:]) {
	case 0x0800:
		if len(ip) < 20 || ip[9] != 17 || binary.BigEndian.Uint16(ip[6:])&0x1fff != 0 {
			return f
		}
		n := int(ip[0]&15) * 4
		if n < 20 || len(ip) < n {
			return f
		}
		udp = ip[n:]
	case 0x86dd:
		if len(ip) < 40 || ip[6] != 17 {
			return f
		}
		udp = ip[40:]
	}
	const header, base = 8, 12
	if len(udp) < header+base || binary.BigEndian.Uint16(udp[2:]) != roce {
		return f
	}
	bth := udp[header:]
	f.RoCE, f.Opcode = true, bth[0]
	f.DestQPN = binary.BigEndian.Uint32(bth[4:]) & 0xffffff
	f.PSN = binary.BigEndian.Uint32(bth[8:]) & 0xffffff
	return f
}
