package shm

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// What a session begins with; docs/protocol.md has the same byte by byte.
const (
	version = 1

	paramsLen      = 48 // and the path
	helloLen       = 64
	helloAnswerLen = 16

	helloMagic  = "KVXS"
	answerMagic = "KVXA"

	maxPath  = 107 // sun_path has 108 bytes, the last is zero
	maxSlots = 1 << 14
	// windowSlots is how many READ windows a target can have open.
	windowSlots = 4096
)

// secret is what an initiator proves that it got the parameters.
type secret [32]byte

func newSecret() (s secret) {
	_, _ = rand.Read(s[:]) // never fails
	return s
}

func (s *secret) equals(t *secret) bool { return subtle.ConstantTimeCompare(s[:], t[:]) == 1 }

// params travel from the target's node to the initiator's over the control connection.
type params struct {
	slots   uint32 // READ windows of the target
	session rdma.SessionID
	secret  secret
	path    string // of the target's socket
}

func (p *params) bytes() []byte {
	b := make([]byte, paramsLen, paramsLen+len(p.path))
	binary.LittleEndian.PutUint16(b, version)
	binary.LittleEndian.PutUint32(b[4:], p.slots)
	binary.LittleEndian.PutUint64(b[8:], uint64(p.session))
	copy(b[16:], p.secret[:])
	return append(b, p.path...)
}

func parseParams(b []byte) (params, error) {
	if len(b) <= paramsLen || len(b) > paramsLen+maxPath {
		return params{}, violation("parameters of %d bytes, want %d to %d", len(b), paramsLen+1, paramsLen+maxPath)
	}
	if v := binary.LittleEndian.Uint16(b); v != version {
		return params{}, fault.New(fault.VersionMismatch, "connect", "the target's session is of version %d, this node speaks %d", v, version)
	}
	p := params{slots: binary.LittleEndian.Uint32(b[4:]), session: rdma.SessionID(binary.LittleEndian.Uint64(b[8:])), path: string(b[paramsLen:])}
	copy(p.secret[:], b[16:])
	if p.slots == 0 || p.slots > maxSlots {
		return params{}, violation("%d slots, want 1 to %d", p.slots, maxSlots)
	}
	return p, nil
}

// hello is the initiator's first message; its descriptor is the initiator's page.
type hello struct {
	minVersion, maxVersion uint16
	slots                  uint32 // WRITEs that the initiator may have in flight
	required               uint32
	session                rdma.SessionID
	secret                 secret
}

func (h *hello) bytes() []byte {
	b := make([]byte, helloLen)
	copy(b, helloMagic)
	binary.LittleEndian.PutUint16(b[4:], h.minVersion)
	binary.LittleEndian.PutUint16(b[6:], h.maxVersion)
	binary.LittleEndian.PutUint32(b[8:], h.slots)
	binary.LittleEndian.PutUint32(b[12:], h.required)
	binary.LittleEndian.PutUint64(b[16:], uint64(h.session))
	copy(b[24:], h.secret[:])
	return b
}

func parseHello(b []byte) (hello, error) {
	var h hello
	le := binary.LittleEndian
	if len(b) != helloLen || string(b[:4]) != helloMagic {
		return h, violation("%d bytes that are no hello", len(b))
	}
	h = hello{minVersion: le.Uint16(b[4:]), maxVersion: le.Uint16(b[6:]), slots: le.Uint32(b[8:]), required: le.Uint32(b[12:]),
		session: rdma.SessionID(le.Uint64(b[16:]))}
	copy(h.secret[:], b[24:])
	switch {
	case h.minVersion > version || h.maxVersion < version:
		return h, fault.New(fault.VersionMismatch, "hello", "the peer speaks versions %d to %d, this node %d", h.minVersion, h.maxVersion, version)
	case h.required != 0:
		return h, fault.New(fault.FeatureRequired, "hello", "feature bits %#x", h.required)
	case h.slots == 0 || h.slots > maxSlots:
		return h, violation("%d slots, want 1 to %d", h.slots, maxSlots)
	case le.Uint64(b[56:]) != 0:
		return h, violation("reserved hello bytes are not zero")
	}
	return h, nil
}

// helloAnswer ends the hello. With status 0 the target's page comes with it.
func helloAnswer(status fault.Code) []byte {
	b := make([]byte, helloAnswerLen)
	copy(b, answerMagic)
	binary.LittleEndian.PutUint16(b[4:], version)
	binary.LittleEndian.PutUint16(b[6:], uint16(status))
	return b
}

func parseHelloAnswer(b []byte) (fault.Code, error) {
	if len(b) != helloAnswerLen || string(b[:4]) != answerMagic || binary.LittleEndian.Uint64(b[8:]) != 0 {
		return 0, violation("%d bytes that are no answer to a hello", len(b))
	}
	status := fault.Code(binary.LittleEndian.Uint16(b[6:]))
	if v := binary.LittleEndian.Uint16(b[4:]); status == 0 && v != version {
		return 0, violation("the target chose version %d, offered was %d", v, version)
	}
	return status, nil
}
