package localapi

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// TestEveryErrorIsTold: whatever a client is answered with an error is said to Failed, once.
func TestEveryErrorIsTold(t *testing.T) {
	var mu sync.Mutex
	var codes []fault.Code
	o := options(t, newEngine(t))
	o.MaxClients = 1
	o.Failed = func(c fault.Code) { mu.Lock(); defer mu.Unlock(); codes = append(codes, c) }
	s := serve(t, o)
	cl := attach(t, s)
	cl.refused(cl.send(wire.KindPing, nil, []byte{1}), fault.ErrProtocolViolation, "array_length")                       // by its shape
	cl.refused(cl.send(wire.KindRegisterRegion, &wire.RegisterRegion{}, nil), fault.ErrProtocolViolation, "fd_count")    // and for its descriptors
	cl.refused(cl.send(wire.KindLease, &wire.LeaseRequest{Cache: 1}, []byte{1, 2, 3}), fault.ErrInvalidArgument, "mode") // by what is in it
	late := dial(t, s)
	late.refused(late.send(wire.KindHello, hello(), nil), fault.ErrResourceExhausted, "") // one client too many
	mu.Lock()
	defer mu.Unlock()
	assert.Equal(t, []fault.Code{fault.ProtocolViolation, fault.ProtocolViolation, fault.InvalidArgument, fault.ResourceExhausted}, codes)
}
