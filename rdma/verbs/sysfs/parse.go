package sysfs

import (
	"encoding/hex"
	"math"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// roceHeaders is what the kernel takes off an interface's MTU before it looks for the power of two (iboe_get_mtu): GRH 40, UDP 8,
// BTH 12, XRC 4, atomic header 28 and check sum 4.
const roceHeaders = 40 + 8 + 12 + 4 + 28 + 4

// EthernetMTU is the payload of a RoCE packet over an interface of this MTU, in bytes: 256, 512, 1024, 2048 or 4096; 0 where none
// fits.
func EthernetMTU(mtu int) int {
	for n := 4096; n >= 256; n /= 2 {
		if n+roceHeaders <= mtu {
			return n
		}
	}
	return 0
}

// parseState takes the word of "4: ACTIVE".
func parseState(s string) string {
	if _, word, found := strings.Cut(s, ":"); found {
		return strings.TrimSpace(word)
	}
	return s
}

func parseLayer(s string) nic.LinkLayer {
	switch s {
	case "Ethernet":
		return nic.Ethernet
	case "InfiniBand":
		return nic.InfiniBand
	}
	return 0
}

// parseRate takes the number of "100 Gb/sec (4X EDR)"; 0: unknown.
func parseRate(s string) float64 {
	word, unit, _ := strings.Cut(s, " ")
	n, err := strconv.ParseFloat(word, 64)
	if err != nil || !strings.HasPrefix(unit, "Gb/sec") || math.IsNaN(n) || n < 0 || n > 1e6 {
		return 0
	}
	return n
}

// parseLID takes "0x1a"; 0: none.
func parseLID(s string) uint16 {
	n, err := strconv.ParseUint(s, 0, 16)
	if err != nil {
		return 0
	}
	return uint16(n)
}

// parseNode reads a NUMA node; the kernel writes -1 where it knows none.
func parseNode(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return int(n), err == nil
}

// parseGID reads eight groups of four hexadecimal digits. An entry of zeros is empty, and so is what no GID may be.
func parseGID(s string) (gid [16]byte, used bool) {
	if len(s) != 39 {
		return gid, false
	}
	for i := range 8 {
		group := s[5*i : 5*i+4]
		if i < 7 && s[5*i+4] != ':' {
			return [16]byte{}, false
		}
		if _, err := hex.Decode(gid[2*i:], []byte(group)); err != nil {
			return [16]byte{}, false
		}
	}
	return gid, gid != [16]byte{}
}

// parseType reads the type of an entry. "IB/RoCE v1" is one number in the kernel; the link layer says which of the two.
func parseType(s string, layer nic.LinkLayer) nic.GIDType {
	switch {
	case layer == nic.InfiniBand:
		return nic.GIDInfiniBand // the kernel has no other there
	case s == "RoCE v2":
		return nic.RoCEv2
	case s == "IB/RoCE v1":
		return nic.RoCEv1
	}
	return 0
}

// slot takes the PCI address from the device's uevent.
func slot(uevent string) string {
	for line := range strings.Lines(uevent) {
		if v, found := strings.CutPrefix(strings.TrimSpace(line), "PCI_SLOT_NAME="); found {
			return v
		}
	}
	return ""
}
