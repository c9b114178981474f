package nic

import (
	"time"
	"unsafe"
)

// Host is an RDMA stack.
type Host interface {
	// Devices lists what is there, also without the library. An empty list is no error. GIDs may be left out: Device.Port has them.
	Devices() ([]DeviceInfo, error)
	// Open makes a device usable: a context, a protection domain, a completion channel. NotSupported says why the library or
	// the device cannot be used; PermissionDenied names the file that may not be opened.
	Open(name string) (Device, error)
}

// Attr is what an opened device can do.
type Attr struct {
	MaxQP, MaxQPWR, MaxSGE, MaxCQE int
	MaxReadInit, MaxReadResp       int    // outstanding READs of a QP, as initiator and as target
	MaxMR                          uint64 // bytes of one registration
	MaxMsg                         uint64 // bytes of one message
	Windows2B                      bool   // memory windows of type 2B
	RelaxedOrdering                bool   // registrations take the flag
	MaxInline                      int    // bytes a SEND may carry inline; 0: none
}

// Access flags of registrations, windows and queue pairs.
type Access uint32

const (
	LocalWrite Access = 1 << iota
	RemoteWrite
	RemoteRead
	WindowBind
	Relaxed // relaxed PCIe ordering; ignored where the device does not take it
)

// Device is an opened device. All methods are safe for concurrent use, except that one goroutine at a time calls Next.
// Errors are typed: ResourceExhausted for a limit (the text names RLIMIT_MEMLOCK where that is it), PeerLost where the device is
// gone, Internal otherwise, each with the name of the failed call and its errno.
type Device interface {
	Name() string
	Attr() Attr
	// Port reads state, MTU, LID and GIDs anew.
	Port(port int) (PortInfo, error)

	// Register pins memory. The remote address of its first byte is Base's value.
	Register(base unsafe.Pointer, length uint64, access Access) (MR, error)
	// NewWindow allocates a memory window of type 2. NotSupported where Attr.Windows2B is false.
	NewWindow() (Window, error)
	// NewQP makes a queue pair in the state RESET. Its completions come through Next.
	NewQP(c QPConfig) (QP, error)

	// Next moves completions into dst. When there are none it looks for spin, then sleeps for at most sleep (0: it does not) until
	// there are some or Wake was called. It returns 0 and nil when there was nothing, and an error when the device is gone or closed.
	Next(dst []Completion, spin, sleep time.Duration) (int, error)
	// Wake makes a sleeping or the next call of Next return.
	Wake()
	// NextEvent waits for an asynchronous event; it returns an error of code Closed after Close. One goroutine calls it.
	NextEvent() (Event, error)

	// Close closes everything; queue pairs, windows and registrations that are left are destroyed first. It fails when the device
	// refuses, and then nothing is known of the memory.
	Close() error
}

// MR is registered memory.
type MR interface {
	LKey() uint32
	RKey() uint32
	// Close deregisters: after nil neither peers nor this device touch the memory through it. With windows bound to it it fails.
	Close() error
}

// Window is a memory window: a key of its own on a part of an MR, valid on the one queue pair that it was bound on.
type Window interface {
	// RKey is the key of the last Bind.
	RKey() uint32
	Close() error
}

// QPConfig sizes a queue pair.
type QPConfig struct {
	MaxSend, MaxRecv int // requests queued
	MaxSGE           int // entries of a send request
	MaxSignaled      int // send requests whose completion may be outstanding; what room in completion queues is kept for
}

// Path is the way to the peer, as ibv_ah_attr has it.
type Path struct {
	Port         int
	GIDIndex     int      // own; of Ethernet, and of InfiniBand where Global
	Global       bool     // a GRH is sent; always on Ethernet
	GID          [16]byte // the peer's
	LID          uint16   // the peer's; InfiniBand
	TrafficClass uint8
	ServiceLevel uint8
	HopLimit     uint8 // 0: 64
	PKeyIndex    uint16
	MTU          int // 256, 512, 1024, 2048, 4096
}

// Connection is the rest of what takes a queue pair to RTS.
type Connection struct {
	PeerQPN      uint32
	PeerPSN, PSN uint32 // 24 bits
	ReadInit     int    // outstanding READs of this side
	ReadResp     int    // of the peer
	Timeout      int    // 4.096 us x 2^Timeout until a retry
	Retries      int    // 0..6: 7 means for ever on some devices
	RNRTimer     int    // code of ibv_modify_qp
	RNRRetries   int    // 0..6
	Access       Access // what the peer may do: RemoteWrite, RemoteRead or neither
}

// SGE is a piece of local memory.
type SGE struct {
	Addr uint64
	Len  uint32
	LKey uint32
}

// Opcode of a work request.
type Opcode uint8

const (
	Write Opcode = 1
	Read  Opcode = 2
	Send  Opcode = 3
)

// WR is one work request of a batch. Its SGEs are sges[First : First+Count] of the call.
type WR struct {
	ID           uint64
	Remote       uint64 // address at the peer: Write, Read
	RKey         uint32
	First, Count uint32
	Op           Opcode
	Signaled     bool
}

// QP is a reliable connection. Its methods may be called from any goroutine; Post, PostRecv, Bind and Invalidate of one QP by one at a time.
type QP interface {
	Num() uint32
	// Connect takes the QP from RESET through INIT and RTR to RTS.
	Connect(p Path, c Connection) error
	// Post queues requests in one crossing and returns how many were taken; an error is about wrs[n]. A WR of length 0 is allowed.
	Post(wrs []WR, sges []SGE) (n int, err error)
	// PostRecv queues receives of one entry each; ids[k] comes back with what filled sges[k]. After Connect.
	PostRecv(ids []uint64, sges []SGE) (n int, err error)
	// Bind queues the binding of w to [addr, addr+length) of mr and gives the key that is valid once it has completed.
	Bind(id uint64, w Window, mr MR, addr, length uint64, access Access) (rkey uint32, err error)
	// Invalidate queues the end of a window's key.
	Invalidate(id uint64, rkey uint32) error
	// Fail moves the QP to ERR: everything queued completes with Flushed.
	Fail() error
	// Reset moves the QP to RESET.
	Reset() error
	Destroy() error
}

// Status of a completion; Other comes with the stack's own number.
type Status uint8

const (
	Success Status = iota
	Flushed
	RemoteAccess    // the key is stale, or its range or right does not cover the request
	RetriesExceeded // the peer does not answer
	RNRExceeded     // the peer posts no receives
	LocalProtection
	RemoteInvalid
	RemoteOperation
	BindFailed
	Other
)

func (s Status) String() string {
	names := [...]string{"success", "flushed", "remote access error", "transport retries exceeded", "receiver-not-ready retries exceeded",
		"local protection error", "remote invalid request", "remote operation error", "memory window bind error", "other error"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Completion is flat, so that polling a batch allocates nothing.
type Completion struct {
	ID     uint64
	QPN    uint32
	Bytes  uint32 // of a RECEIVE
	Status Status
	Recv   bool
	Raw    uint8 // the stack's own status
}

// EventKind of an asynchronous event.
type EventKind uint8

const (
	PortDown    EventKind = 1
	PortUp      EventKind = 2
	PortChanged EventKind = 3 // LID, P_Key or GID table
	QPFatal     EventKind = 4
	DeviceFatal EventKind = 5 // the device is unusable or gone
	OtherEvent  EventKind = 6
)

// Event is an asynchronous event.
type Event struct {
	Kind EventKind
	Port int
	QPN  uint32
	Text string
}
