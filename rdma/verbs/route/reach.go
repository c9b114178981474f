package route

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// Reach is a pick.Reach of this network namespace. What cannot be found out, as where the interface has just gone, is no.
func Reach(from pick.Rail, gid nic.GIDInfo, to netip.Addr) bool {
	name := gid.Netdev
	if name == "" {
		name = from.Netdev
	}
	out, err := net.InterfaceByName(name)
	if err != nil {
		return false
	}
	yes, err := leads(gid.Addr(), to, out.Index)
	return err == nil && yes
}

// Parts of rtnetlink that x/sys/unix has no types for.
const (
	headerSize = unix.SizeofNlMsghdr + unix.SizeofRtMsg
	fibMatch   = 0x2000 // RTM_F_FIB_MATCH: answer with the entry of the table, and fail where there is none
	answerRoom = 8192
)

// leads asks whether the tables have a route from an address through an interface.
func leads(from, to netip.Addr, oif int) (bool, error) {
	if from.Is4() != to.Is4() || !to.IsValid() || to.IsMulticast() || to.IsUnspecified() {
		return false, nil
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return false, err
	}
	defer func() { _ = unix.Close(fd) }()
	// The kernel answers within the call that asks; this is for a kernel that does not.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}); err != nil {
		return false, err
	}
	if err := unix.Sendto(fd, question(from, to, oif), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false, err
	}
	buf := make([]byte, answerRoom)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return false, err
		}
		return answer(buf[:n], oif), nil
	}
}

// question is a request for the route from an address to another one through an interface.
func question(from, to netip.Addr, oif int) []byte {
	family, bits := byte(unix.AF_INET), byte(32)
	if to.Is6() {
		family, bits = unix.AF_INET6, 128
	}
	b := make([]byte, headerSize, 128)
	b[unix.SizeofNlMsghdr] = family
	b[unix.SizeofNlMsghdr+1], b[unix.SizeofNlMsghdr+2] = bits, bits
	binary.NativeEndian.PutUint32(b[unix.SizeofNlMsghdr+8:], fibMatch)
	b = attribute(b, unix.RTA_DST, to.AsSlice())
	b = attribute(b, unix.RTA_SRC, from.AsSlice())
	b = attribute(b, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, uint32(oif)))
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], unix.RTM_GETROUTE)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST)
	return b
}

func attribute(b []byte, kind uint16, value []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(unix.SizeofRtAttr+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	for len(b)%unix.RTA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// answer says whether a message is a unicast route through the interface: an entry with one way names it in RTA_OIF, one with
// several in each of RTA_MULTIPATH's.
func answer(b []byte, oif int) bool {
	if len(b) < headerSize || binary.NativeEndian.Uint16(b[4:]) != unix.RTM_NEWROUTE {
		return false
	}
	size := int(binary.NativeEndian.Uint32(b))
	if size < headerSize || size > len(b) {
		return false
	}
	if kind := b[unix.SizeofNlMsghdr+7]; kind != unix.RTN_UNICAST && kind != unix.RTN_LOCAL {
		return false
	}
	for b = b[headerSize:size]; len(b) >= unix.SizeofRtAttr; {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtAttr || n > len(b) {
			return false
		}
		value := b[unix.SizeofRtAttr:n]
		switch binary.NativeEndian.Uint16(b[2:]) {
		case unix.RTA_OIF:
			if len(value) == 4 {
				return int(binary.NativeEndian.Uint32(value)) == oif
			}
		case unix.RTA_MULTIPATH:
			return hops(value, oif)
		}
		b = b[min(len(b), (n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return false
}

// hops looks for an interface among the ways of a route with several.
func hops(b []byte, oif int) bool {
	for len(b) >= unix.SizeofRtNexthop {
		n := int(binary.NativeEndian.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			return false
		}
		if int(int32(binary.NativeEndian.Uint32(b[4:]))) == oif {
			return true
		}
		b = b[min(len(b), (n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
	}
	return false
}
