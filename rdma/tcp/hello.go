package tcp

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
)

// LaneMagic is how a lane opens: the first bytes that a listener shared with other protocols sees.
const LaneMagic = "KVXL"

const (
	laneVersion = 1 // the only version so far
	helloLen    = 64
	answerLen   = 16
	paramsLen   = 48
	answerMagic = "KVXA"
	maxLanes    = 64
)

type secret [32]byte

func newSecret() (s secret) {
	rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return s
}

func (s *secret) equals(o *secret) bool { return subtle.ConstantTimeCompare(s[:], o[:]) == 1 }

// params is what Accept gives to the peer's Connect.
type params struct {
	lanes   uint16
	tls     bool // lanes are taken over TLS only; else in clear only
	session rdma.SessionID
	secret  secret
}

// paramTLS is the one flag of parameters; a reader ignores others.
const paramTLS = 1

func (p *params) bytes() []byte {
	b := make([]byte, paramsLen)
	le := binary.LittleEndian
	le.PutUint16(b[0:], laneVersion)
	le.PutUint16(b[2:], p.lanes)
	if p.tls {
		le.PutUint32(b[4:], paramTLS)
	}
	le.PutUint64(b[8:], uint64(p.session))
	copy(b[16:], p.secret[:])
	return b
}

func parseParams(b []byte) (params, error) {
	var p params
	le := binary.LittleEndian
	if len(b) < 2 {
		return p, fault.Invalid("connect", "params", "%d bytes, want %d", len(b), paramsLen)
	}
	if v := le.Uint16(b); v != laneVersion {
		return p, fault.New(fault.VersionMismatch, "connect", "the peer speaks lane version %d, this node %d", v, laneVersion)
	}
	if len(b) != paramsLen {
		return p, fault.Invalid("connect", "params", "%d bytes, want %d", len(b), paramsLen)
	}
	p.lanes, p.tls, p.session = le.Uint16(b[2:]), le.Uint32(b[4:])&paramTLS != 0, rdma.SessionID(le.Uint64(b[8:]))
	copy(p.secret[:], b[16:])
	if p.lanes == 0 || p.lanes > maxLanes {
		return p, fault.Invalid("connect", "params.lanes", "%d, want 1 to %d", p.lanes, maxLanes)
	}
	return p, nil
}

// hello opens a lane: who it belongs to and the proof.
type hello struct {
	minVersion, maxVersion uint16
	lane                   uint16
	required               uint32 // feature bits that the acceptor must know; none exist in version 1
	session                rdma.SessionID
	secret                 secret
}

func (h *hello) bytes() []byte {
	b := make([]byte, helloLen)
	le := binary.LittleEndian
	copy(b, LaneMagic)
	le.PutUint16(b[4:], h.minVersion)
	le.PutUint16(b[6:], h.maxVersion)
	le.PutUint16(b[8:], h.lane)
	le.PutUint32(b[12:], h.required)
	le.PutUint64(b[16:], uint64(h.session))
	copy(b[24:], h.secret[:])
	return b
}

// parseHello reads a hello of helloLen bytes.
func parseHello(b []byte) (hello, error) {
	var h hello
	le := binary.LittleEndian
	if string(b[:len(LaneMagic)]) != LaneMagic {
		return h, violation("lane magic %q, want %q", b[:len(LaneMagic)], LaneMagic)
	}
	h = hello{minVersion: le.Uint16(b[4:]), maxVersion: le.Uint16(b[6:]), lane: le.Uint16(b[8:]),
		required: le.Uint32(b[12:]), session: rdma.SessionID(le.Uint64(b[16:]))}
	copy(h.secret[:], b[24:])
	if h.minVersion > laneVersion || h.maxVersion < laneVersion {
		return h, fault.New(fault.VersionMismatch, "lane", "the peer speaks lane versions %d to %d, this node %d",
			h.minVersion, h.maxVersion, laneVersion)
	}
	if h.required != 0 {
		return h, fault.New(fault.FeatureRequired, "lane", "feature bits %#x", h.required)
	}
	if le.Uint16(b[10:]) != 0 || le.Uint64(b[56:]) != 0 {
		return h, violation("reserved hello bytes are not zero")
	}
	return h, nil
}

// answer ends the hello: status 0 makes the connection a lane.
type answer struct {
	version uint16
	status  fault.Code
}

func (a *answer) bytes() []byte {
	b := make([]byte, answerLen)
	copy(b, answerMagic)
	binary.LittleEndian.PutUint16(b[4:], a.version)
	binary.LittleEndian.PutUint16(b[6:], uint16(a.status))
	return b
}

// parseAnswer reads an answer of answerLen bytes.
func parseAnswer(b []byte) (answer, error) {
	a := answer{version: binary.LittleEndian.Uint16(b[4:]), status: fault.Code(binary.LittleEndian.Uint16(b[6:]))}
	if string(b[:4]) != answerMagic || binary.LittleEndian.Uint64(b[8:]) != 0 {
		return a, violation("malformed answer to a lane hello")
	}
	if a.status == 0 && a.version != laneVersion {
		return a, violation("the acceptor chose lane version %d, offered was %d", a.version, laneVersion)
	}
	return a, nil
}
