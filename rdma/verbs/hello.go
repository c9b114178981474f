package verbs

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"math"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/rdma"
	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
	"github.com/kvxfer/kvxfer/rdma/verbs/pick"
)

// SideMagic is how a side channel opens: the first bytes that a listener shared with other protocols sees.
const SideMagic = "KVXV"

const (
	sideVersion = 1 // the only version so far
	helloLen    = 56
	answerLen   = 16
	answerMagic = "KVXB"
	maxRails    = 32 // of a session
	maxGIDs     = 64
)

type secret [32]byte

func newSecret() (s secret) {
	rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return s
}

func (s *secret) equals(o *secret) bool { return subtle.ConstantTimeCompare(s[:], o[:]) == 1 }

// params is what Accept gives to the peer's Connect: the session, its proof, and the ports that the target listens on.
type params struct {
	tls     bool
	session rdma.SessionID
	secret  secret
	rails   []pick.PeerRail
}

const paramTLS = 1

func (p *params) bytes() []byte {
	var w writer
	w.u16(sideVersion)
	flags := uint16(0)
	if p.tls {
		flags |= paramTLS
	}
	w.u16(flags)
	w.u64(uint64(p.session))
	w.raw(p.secret[:])
	w.u16(uint16(len(p.rails)))
	for _, r := range p.rails {
		w.text(r.Name)
		w.u8(uint8(r.LinkLayer))
		w.u32(uint32(int32(r.NUMA)))
		w.u32(uint32(r.MTU))
		w.u32(uint32(math.Round(r.Gbps * 1000)))
		w.u16(r.LID)
		w.u16(uint16(min(len(r.GIDs), maxGIDs)))
		for _, g := range r.GIDs[:min(len(r.GIDs), maxGIDs)] {
			w.raw(g.GID[:])
			w.u8(uint8(g.Type))
		}
	}
	return w.b
}

func parseParams(b []byte) (params, error) {
	var p params
	if len(b) < 2 {
		return p, fault.Invalid("connect", "params", "%d bytes, want at least %d", len(b), 46)
	}
	if v := binary.LittleEndian.Uint16(b); v != sideVersion {
		return p, fault.New(fault.VersionMismatch, "connect", "the peer speaks verbs version %d, this node %d", v, sideVersion)
	}
	r := reader{b: b[2:]}
	p.tls = r.u16()&paramTLS != 0
	p.session = rdma.SessionID(r.u64())
	r.raw(p.secret[:])
	n := int(r.u16())
	if n > maxRails {
		return p, fault.Invalid("connect", "params.rails", "%d, want 0 to %d", n, maxRails)
	}
	for range n {
		f := pick.PeerRail{Name: r.text(), LinkLayer: nic.LinkLayer(r.u8()), NUMA: int(int32(r.u32())), MTU: int(r.u32()), Gbps: float64(r.u32()) / 1000, LID: r.u16()}
		k := int(r.u16())
		if k > maxGIDs {
			return p, fault.Invalid("connect", "params.gids", "%d, want 0 to %d", k, maxGIDs)
		}
		for range k {
			var g nic.GIDInfo
			r.raw(g.GID[:])
			g.Type = nic.GIDType(r.u8())
			f.GIDs = append(f.GIDs, g)
		}
		if r.bad || len(f.Name) > 128 || f.MTU < 0 || f.MTU > 1<<16 {
			return p, fault.Invalid("connect", "params.rails", "rail %q is malformed", f.Name)
		}
		p.rails = append(p.rails, f)
	}
	if r.end("parameters") != nil {
		return p, fault.Invalid("connect", "params", "%d bytes are not what their counts say", len(b))
	}
	return p, nil
}

// hello opens a side channel: which session, and the proof.
type hello struct {
	minVersion, maxVersion uint16
	required               uint32 // feature bits that the acceptor must know; none exist in version 1
	session                rdma.SessionID
	secret                 secret
}

func (h *hello) bytes() []byte {
	w := writer{b: make([]byte, 0, helloLen)}
	w.raw([]byte(SideMagic))
	w.u16(h.minVersion)
	w.u16(h.maxVersion)
	w.u32(h.required)
	w.u64(uint64(h.session))
	w.raw(h.secret[:])
	w.u32(0)
	return w.b
}

// parseHello reads a hello of helloLen bytes.
func parseHello(b []byte) (hello, error) {
	var h hello
	if string(b[:len(SideMagic)]) != SideMagic {
		return h, violation("magic %q, want %q", b[:len(SideMagic)], SideMagic)
	}
	r := reader{b: b[len(SideMagic):]}
	h = hello{minVersion: r.u16(), maxVersion: r.u16(), required: r.u32(), session: rdma.SessionID(r.u64())}
	r.raw(h.secret[:])
	reserved := r.u32()
	if h.minVersion > sideVersion || h.maxVersion < sideVersion {
		return h, fault.New(fault.VersionMismatch, "side channel", "the peer speaks verbs versions %d to %d, this node %d",
			h.minVersion, h.maxVersion, sideVersion)
	}
	if h.required != 0 {
		return h, fault.New(fault.FeatureRequired, "side channel", "feature bits %#x", h.required)
	}
	if reserved != 0 {
		return h, violation("reserved hello bytes are not zero")
	}
	return h, nil
}

// answer ends the hello: status 0 makes the connection a side channel.
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
		return a, violation("malformed answer to a hello")
	}
	if a.status == 0 && a.version != sideVersion {
		return a, violation("the acceptor chose verbs version %d, offered was %d", a.version, sideVersion)
	}
	return a, nil
}
