package nic

import "net/netip"

// DeviceInfo is what can be told of a device without opening it.
type DeviceInfo struct {
	Name  string // "mlx5_0", "rxe0"
	NUMA  int    // -1: unknown, or one node
	Bus   string // PCI address, or ""
	Ports []PortInfo
}

// LinkLayer of a port.
type LinkLayer uint8

const (
	Ethernet   LinkLayer = 1 // RoCE
	InfiniBand LinkLayer = 2
)

func (l LinkLayer) String() string {
	switch l {
	case Ethernet:
		return "Ethernet"
	case InfiniBand:
		return "InfiniBand"
	}
	return "unknown"
}

// PortInfo is one port, counted from 1.
type PortInfo struct {
	Port      int
	LinkLayer LinkLayer
	Active    bool
	State     string // "ACTIVE", "DOWN", ...
	MTU       int    // bytes of payload in a packet, as active now; 0: unknown
	LID       uint16 // InfiniBand
	Gbps      float64
	Netdev    string // RoCE: the interface below it; "" where another network namespace has it
	GIDs      []GIDInfo
	PKeys     []uint16 // the table of partition keys, by index; 0: an empty entry; nil: unknown
}

// GIDType of a table entry.
type GIDType uint8

const (
	GIDInfiniBand GIDType = 1
	RoCEv1        GIDType = 2
	RoCEv2        GIDType = 3
)

// GIDInfo is one entry of a port's table that is in use.
type GIDInfo struct {
	Index  int
	GID    [16]byte
	Type   GIDType
	Netdev string
}

// Addr is the GID as an address; v4-mapped ones come as IPv4.
func (g GIDInfo) Addr() netip.Addr { return netip.AddrFrom16(g.GID).Unmap() }
