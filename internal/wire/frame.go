package wire

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/version"
)

// HeaderSize is the size of a frame's header in bytes.
const HeaderSize = 32

// Magic opens every control frame: the bytes "KVXF".
const Magic = 0x4658564B

// Limits bound what a reader accepts from the other side.
type Limits struct {
	JSON  uint32 // bytes of the JSON body
	Array uint32 // bytes of the array
	FDs   uint16 // file descriptors
}

// Limits of both protocols, in bytes.
const (
	maxJSON  = 1 << 20
	maxArray = 64 << 20
)

// LocalLimits hold on the Unix socket: an array of 64 MiB is 16 million block ids.
var LocalLimits = Limits{JSON: maxJSON, Array: maxArray, FDs: 16}

// PeerLimits hold on the control connection between daemons; no descriptor crosses it.
var PeerLimits = Limits{JSON: maxJSON, Array: maxArray}

// MaxNotification is the largest notification that a FIN carries, in bytes.
const MaxNotification = 64 << 10

// Flags of a frame. A reader ignores bits that it does not know.
const (
	// FlagNoReply marks a frame that gets no answer. The kind alone decides whether there is one, so the flag changes
	// nothing for a reader that knows the kind; it is for tools that follow a connection.
	FlagNoReply uint16 = 1 << 0
)

// Header is a frame's header.
//
//	offset size field
//	     0    4 magic "KVXF"
//	     4    1 version of the frame format, 1
//	     5    1 kind
//	     6    2 flags
//	     8    8 request id; 0 in events
//	    16    4 JSON length in bytes
//	    20    4 array length in bytes
//	    24    2 number of file descriptors that come with the frame
//	    26    6 reserved, written as 0 and ignored when read
//
// All integers are little-endian.
type Header struct {
	Kind    Kind
	Flags   uint16
	Request uint64
	JSON    uint32
	Array   uint32
	FDs     uint16
}

// FrameVersion is the only version of the header's layout.
const FrameVersion = 1

// Frame is one message.
type Frame struct {
	Kind    Kind
	Flags   uint16
	Request uint64
	JSON    []byte
	Array   []byte
	FDs     uint16
}

// PutHeader writes h into b[:HeaderSize].
func PutHeader(b []byte, h Header) {
	_ = b[HeaderSize-1]
	binary.LittleEndian.PutUint32(b, Magic)
	b[4], b[5] = FrameVersion, byte(h.Kind)
	binary.LittleEndian.PutUint16(b[6:], h.Flags)
	binary.LittleEndian.PutUint64(b[8:], h.Request)
	binary.LittleEndian.PutUint32(b[16:], h.JSON)
	binary.LittleEndian.PutUint32(b[20:], h.Array)
	binary.LittleEndian.PutUint16(b[24:], h.FDs)
	clear(b[26:HeaderSize])
}

// ParseHeader checks and reads b[:HeaderSize] against limits.
func ParseHeader(b []byte, lim Limits) (Header, error) {
	if len(b) < HeaderSize {
		return Header{}, violation("header", "%d bytes, want %d", len(b), HeaderSize)
	}
	if m := binary.LittleEndian.Uint32(b); m != Magic {
		return Header{}, violation("magic", "%#08x is not a kvxfer frame", m)
	}
	if b[4] != FrameVersion {
		return Header{}, violation("version", "frame format %d, want %d", b[4], FrameVersion)
	}
	h := Header{
		Kind:    Kind(b[5]),
		Flags:   binary.LittleEndian.Uint16(b[6:]),
		Request: binary.LittleEndian.Uint64(b[8:]),
		JSON:    binary.LittleEndian.Uint32(b[16:]),
		Array:   binary.LittleEndian.Uint32(b[20:]),
		FDs:     binary.LittleEndian.Uint16(b[24:]),
	}
	switch {
	case h.JSON > lim.JSON:
		return Header{}, violation("json_length", "%d, allowed 0..%d", h.JSON, lim.JSON)
	case h.Array > lim.Array:
		return Header{}, violation("array_length", "%d, allowed 0..%d", h.Array, lim.Array)
	case h.FDs > lim.FDs:
		return Header{}, violation("fd_count", "%d, allowed 0..%d", h.FDs, lim.FDs)
	}
	return h, nil
}

// Append appends the frame's bytes to dst.
func Append(dst []byte, f Frame) []byte {
	n := len(dst)
	dst = append(dst, make([]byte, HeaderSize)...)
	PutHeader(dst[n:], Header{Kind: f.Kind, Flags: f.Flags, Request: f.Request,
		JSON: uint32(len(f.JSON)), Array: uint32(len(f.Array)), FDs: f.FDs})
	dst = append(dst, f.JSON...)
	return append(dst, f.Array...)
}

// NewFrame makes a frame with body as JSON (nil: none). What no reader would accept is refused here, as an answer to
// one request, because on the wire it would cost the whole connection.
func NewFrame(kind Kind, request uint64, body any, array []byte) (Frame, error) {
	f := Frame{Kind: kind, Request: request, Array: array}
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return Frame{}, fault.Wrap(fault.Internal, "encode", err)
		}
		f.JSON = raw
	}
	f.JSON = version.WithUnknownFields(f.JSON)
	if len(f.JSON) > maxJSON || len(array) > maxArray {
		return Frame{}, fault.New(fault.NotSupported, "frame", "%s of %d bytes of JSON and %d of array, allowed 0..%d and 0..%d",
			kind, len(f.JSON), len(array), maxJSON, maxArray)
	}
	return f, nil
}

// MaxErrorText bounds each text of an ERROR frame, in bytes.
const MaxErrorText = fault.MaxText

// NewError makes the ERROR frame that answers a request, or with request 0 ends the connection. It cannot fail: texts,
// which may quote the other side, are cut to MaxErrorText.
func NewError(request uint64, err error) Frame {
	w := fault.ToWire(fault.From("", err))
	for _, s := range [...]*string{&w.Op, &w.Peer, &w.Region, &w.Field, &w.Detail} {
		*s = clip(*s, MaxErrorText)
	}
	raw, err := json.Marshal(w)
	if err != nil { // no field of fault.Wire can fail to marshal
		panic(err)
	}
	return Frame{Kind: KindError, Request: request, JSON: version.WithUnknownFields(raw)}
}

// ReadFrame reads one frame. io.EOF comes back unchanged when the stream ends between frames; an end inside a frame
// is io.ErrUnexpectedEOF. Memory is taken as bytes arrive, so a false length costs no more than was really sent.
func ReadFrame(r io.Reader, lim Limits) (Frame, error) {
	var b [HeaderSize]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Frame{}, err
	}
	return ReadBody(r, b[:], lim)
}

// ReadBody reads what follows a header that was read already.
func ReadBody(r io.Reader, header []byte, lim Limits) (Frame, error) {
	h, err := ParseHeader(header, lim)
	if err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: h.Kind, Flags: h.Flags, Request: h.Request, FDs: h.FDs}
	if f.JSON, err = readN(r, int(h.JSON)); err != nil {
		return Frame{}, err
	}
	if f.Array, err = readN(r, int(h.Array)); err != nil {
		return Frame{}, err
	}
	return f, nil
}

// growStep bounds what is allocated ahead of the bytes' arrival.
const growStep = 1 << 20

func readN(r io.Reader, n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	buf := make([]byte, min(n, growStep))
	for done := 0; ; {
		k, err := io.ReadFull(r, buf[done:])
		done += k
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if done == n {
			return buf, nil
		}
		buf = append(buf, make([]byte, min(n-done, len(buf)))...)
	}
}

// Decode reads the frame's JSON body into v; unknown fields are ignored (they come from a newer version). Its error
// names the field whose type is wrong, or "body" when the whole cannot be read.
func (f *Frame) Decode(v any) error {
	err := json.Unmarshal(f.JSON, v)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return violation(clip(cmp.Or(wrong.Field, "body"), maxEcho), "%s: JSON %s, allowed %s", f.Kind, clip(wrong.Value, maxEcho), jsonType(wrong.Type))
	default:
		return violation("body", "%s: %s", f.Kind, clip(err.Error(), maxEcho))
	}
}

// jsonType says a field's type in the protocol's words: who reads it may not know Go.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a string"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("an integer of %d bits", t.Bits())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("an integer of 0..2^%d-1", t.Bits())
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string of base64"
		}
		return "a list"
	default:
		return "an object"
	}
}

// maxEcho bounds in bytes what an error repeats of the other side's text: JSON errors quote numbers of any length, and
// an error must fit into a frame.
const maxEcho = 256

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "..."
}

func violation(field, format string, args ...any) error {
	e := fault.New(fault.ProtocolViolation, "frame", format, args...)
	e.Field = field
	return e
}
