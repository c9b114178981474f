package localapi

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/internal/wire"
)

// TestTheSecondWay: the descriptor of a client's own memory is taken for that kind, and for that kind alone.
func TestTheSecondWay(t *testing.T) {
	e := newEngine(t)
	c := attach(t, serve(t, options(t, e)))
	b, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(b)) }()
	mem, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(mem)
	memory := memfd(t, 8192)
	defer unix.Close(memory)

	process := region("kv", 8000)
	process.Kind, process.Addr = wire.RegionProcess, uint64(uintptr(unsafe.Pointer(&b[0])))+100
	assert.Equal(t, wire.KindOK, c.ask(wire.KindRegisterRegion, process, nil, mem).Kind)
	c.refused(c.send(wire.KindRegisterRegion, process, nil, memory), fault.ErrMemoryRejected, "kind")
	c.refused(c.send(wire.KindRegisterRegion, region("kv", 8192), nil, mem), fault.ErrMemoryRejected, "kind")
	gone := *process
	gone.Addr = 4096
	c.refused(c.send(wire.KindRegisterRegion, &gone, nil, mem), fault.ErrMemoryRejected, "addr")

	adopted := region("kv", 8000)
	adopted.Offset = 16
	assert.Equal(t, wire.KindOK, c.ask(wire.KindRegisterRegion, adopted, nil, memory).Kind)
	adopted.Offset = 4096
	c.refused(c.send(wire.KindRegisterRegion, adopted, nil, memory), fault.ErrMemoryRejected, "size")
	assert.Equal(t, []string{"add", "region kv 8000", "region kv 8000"}, e.log())
}
