package softnic_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

func TestBytesMove(t *testing.T) {
	r := newRig(t)
	r.connect()
	fill(r.a.mem, 1)
	r.a.post(nic.Write, 1, 0, size, addr(r.b.mem), r.b.mr.RKey())
	r.a.expect(1, nic.Success)
	require.Equal(t, r.a.mem, r.b.mem)

	fill(r.b.mem, 2)
	r.a.post(nic.Read, 2, 0, size, addr(r.b.mem), r.b.mr.RKey())
	r.a.expect(2, nic.Success)
	require.Equal(t, r.b.mem, r.a.mem)

	r.b.recv(7, 100, 9000)
	r.a.post(nic.Send, 3, 5, 8500, 0, 0)
	c := r.b.wait()
	require.Equal(t, nic.Completion{ID: 7, QPN: r.b.qp.Num(), Bytes: 8500, Recv: true}, c)
	r.a.expect(3, nic.Success)
	require.Equal(t, r.a.mem[5:8505], r.b.mem[100:8600])
}
