package localapi

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/wire"
)

var fuzzKinds = []wire.Kind{
	wire.KindHello, wire.KindPing, wire.KindStatus, wire.KindRegisterRegion, wire.KindDeregisterRegion, wire.KindRegisterCache,
	wire.KindDropCache, wire.KindBlocks, wire.KindEvict, wire.KindLease, wire.KindRevoke, wire.KindPush, wire.KindPushLayer,
	wire.KindPushFinish, wire.KindPushCancel, wire.KindSpans, wire.KindError, wire.KindBind, wire.KindOK, 0, 0xff,
	wire.KindRenew, wire.KindAdvertise, wire.KindPull, wire.KindScatter, wire.KindProbe, wire.KindReport,
	wire.KindInspect, wire.KindDrain, wire.KindLogLevel,
}

var fuzzBodies = []string{
	"", "{}", "null", "[]", `{"cache":1}`, `{"lease":1}`, `{"transfer":1}`, `{"region":7}`, `{"spans":[{"name":"a"}]}`,
	`{"cache":1,"mode":"write","ttl_ms":5}`, `{"cache":1,"ticket":"t","timeout_ms":5,"layerwise":true}`,
	`{"name":"kv","id":"0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f","kind":"memfd","size":4096}`,
	`{"lease":1,"ttl_ms":5}`, `{"region":7,"mode":"read","ttl_ms":5}`, `{"region":7,"mode":"write","ticket":"t","timeout_ms":5}`,
	`{"node":"n","provider":"tcp","bytes":1,"timeout_ms":1}`, `{"what":"log"}`,
	`{"min_version":1,"max_version":1}`, `{"cache":-1}`, `{`, `{"what":"leases","all_tenants":true}`, `{"wait":true,"timeout_ms":1}`, `{"level":"debug"}`,
}

// plan turns fuzz input into frames: most of them well framed, so that the input reaches what lies behind the framing.
// Each frame takes 4 bytes (kind, body, flags, array length) and its array; flag 1 gives it an id, the next two bits
// descriptors, which come with the frame as its header says unless flag 8 makes the header lie; flag 16 sends the
// frame's array bytes raw instead.
func plan(in []byte, send func(b []byte, fds int) error) {
	for n := uint64(1); len(in) >= 4; n++ {
		kind, text, flags, size := in[0], in[1], in[2], int(in[3])
		in = in[4:]
		size = min(size, len(in))
		array := in[:size]
		in = in[size:]
		fds := int(flags >> 1 & 3)
		f := wire.Frame{Kind: fuzzKinds[int(kind)%len(fuzzKinds)], JSON: []byte(fuzzBodies[int(text)%len(fuzzBodies)]), Array: array, FDs: uint16(fds)}
		if flags&1 != 0 {
			f.Request = n
		}
		if flags&8 != 0 {
			f.FDs ^= 1
		}
		b := wire.Append(nil, f)
		if flags&16 != 0 {
			b = array
		}
		if len(b) > 0 && send(b, fds) != nil {
			return
		}
	}
}

func FuzzConnection(f *testing.F) {
	f.Add([]byte{1, 0, 1, 0}, true)
	f.Add([]byte{3, 11, 1 | 2, 0, 9, 9, 1, 4, 1, 0, 0, 0, 12, 0, 0, 24}, true)
	f.Add([]byte{3, 11, 1 | 2 | 8, 0}, true)
	f.Add([]byte{0, 12, 1, 0, 1, 0, 1, 0}, false)
	f.Add([]byte("\x00\x00\x10\x20KVXF\x01\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), true)
	f.Fuzz(func(t *testing.T, in []byte, greet bool) {
		e := newEngine(t)
		o := options(t, e)
		o.Operator = &fakeOperator{}
		s := serve(t, o)
		c := dial(t, s)
		if greet {
			require.Equal(t, wire.KindHelloOK, c.ask(wire.KindHello, hello(), nil).Kind)
		}
		read := make(chan struct{})
		go func() {
			defer close(read)
			_, _ = io.Copy(io.Discard, c.conn)
		}()
		plan(in, func(b []byte, fds int) error {
			var oob []byte
			if fds > 0 {
				fd := memfd(t, 4096)
				defer func() { _ = unix.Close(fd) }()
				oob = unix.UnixRights([]int{fd, fd, fd}[:fds]...)
			}
			_, _, err := c.conn.WriteMsgUnix(b, oob, nil)
			return err
		})
		_ = c.conn.CloseWrite()
		<-read
		_ = c.conn.Close()
		if greet {
			e.wait("gone", 1)
		}
		noLeaks(t)
	})
}
