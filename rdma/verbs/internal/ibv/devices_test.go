package ibv

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/rdma/verbs/nic"
)

// tree makes files under a new folder.
func tree(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text+"\n"), 0o644))
	}
	return root
}

func TestListDevices(t *testing.T) {
	none, err := listDevices(t.TempDir())
	require.NoError(t, err)
	assert.Empty(t, none)

	port := "infiniband/mlx5_0/ports/1/"
	root := tree(t, map[string]string{
		"pci/0000:3b:00.0/numa_node": "1",
		port + "link_layer":          "Ethernet",
		port + "state":               "4: ACTIVE",
		port + "lid":                 "0x0",
		port + "rate":                "400 Gb/sec (4X NDR)",
		port + "gids/0":              "fe80:0000:0000:0000:0202:c9ff:fe00:0001",
		port + "gid_attrs/types/0":   "IB/RoCE v1",
		port + "gid_attrs/ndevs/0":   "eth3",
		port + "gids/10":             "0000:0000:0000:0000:0000:0000:0000:0000",
		port + "gid_attrs/types/10":  "",
		port + "gids/3":              "0000:0000:0000:0000:0000:ffff:0a07:0001",
		port + "gid_attrs/types/3":   "RoCE v2",
		port + "gid_attrs/ndevs/3":   "eth3.5",
		port + "gids/4":              "no address",
		port + "gids/5":              "0000:0000:0000:0000:0000:ffff:0a07:0002",
		port + "gid_attrs/types/5":   "RoCE v2",
		port + "gid_attrs/ndevs/5":   "elsewhere",
		port + "pkeys/0":             "0xffff",
		port + "pkeys/1":             "0x0000",
		port + "pkeys/2":             "0x8005",
		"net/eth3/mtu":               "1500",
		"net/eth3.5/mtu":             "1500",

		"infiniband/ib0/ports/1/link_layer":        "InfiniBand",
		"infiniband/ib0/ports/1/state":             "2: INIT",
		"infiniband/ib0/ports/1/lid":               "0x1f",
		"infiniband/ib0/ports/1/rate":              "2.5 Gb/sec (1X SDR)",
		"infiniband/ib0/ports/1/gids/0":            "fe80:0000:0000:0000:0002:c903:0000:0011",
		"infiniband/ib0/ports/1/gid_attrs/types/0": "IB/RoCE v1",
		"infiniband/ib0/ports/1/gids/1":            "fe80:0000:0000:0000:0000:0000:0000:0000",
		"infiniband/ib0/ports/1/gid_attrs/types/1": "IB/RoCE v1",
	})
	require.NoError(t, os.Symlink("../../pci/0000:3b:00.0", filepath.Join(root, "infiniband/mlx5_0/device")))
	all, err := listDevices(root)
	require.NoError(t, err)
	require.Len(t, all, 2)
	ib, mlx := all[0], all[1]

	assert.Equal(t, "ib0", ib.Name)
	assert.Equal(t, -1, ib.NUMA)
	assert.Equal(t, []nic.PortInfo{{Port: 1, LinkLayer: nic.InfiniBand, State: "INIT", LID: 0x1f, Gbps: 2.5}}, ib.Ports)
	assert.Equal(t, []nic.GIDInfo{{Index: 0, GID: [16]byte{0xfe, 0x80, 9: 2, 10: 0xc9, 11: 3, 15: 0x11}, Type: nic.GIDInfiniBand}}, readPort(root, "ib0", 1, nil).GIDs)

	assert.Equal(t, "mlx5_0", mlx.Name)
	assert.Equal(t, 1, mlx.NUMA)
	assert.Equal(t, "0000:3b:00.0", mlx.Bus)
	require.Len(t, mlx.Ports, 1)
	assert.Empty(t, mlx.Ports[0].GIDs, "an opened device is asked for them")
	assert.Equal(t, []uint16{0xffff, 0, 0x8005}, mlx.Ports[0].PKeys)
	p := readPort(root, "mlx5_0", 1, nil)
	assert.True(t, p.Active)
	assert.Equal(t, 400.0, p.Gbps)
	assert.Equal(t, "eth3", p.Netdev)
	require.Len(t, p.GIDs, 3)
	assert.Equal(t, nic.RoCEv1, p.GIDs[0].Type)
	assert.Equal(t, nic.RoCEv2, p.GIDs[1].Type)
	assert.Equal(t, "10.7.0.1", p.GIDs[1].Addr().String())
	assert.Equal(t, "eth3.5", p.GIDs[1].Netdev)
	assert.Empty(t, p.GIDs[2].Netdev, "another network namespace's")
	assert.Equal(t, p.GIDs[1:2], readPort(root, "mlx5_0", 1, map[int]nic.GIDType{3: nic.RoCEv2, 10: nic.RoCEv2}).GIDs)
}

func TestRooms(t *testing.T) {
	r := rooms{entries: 100}
	_, ok := r.take(10)
	assert.False(t, ok)
	r.add(7, 127) // a device rounds up
	for range 3 {
		i, ok := r.take(40)
		require.True(t, ok)
		assert.Equal(t, 7, i)
	}
	_, ok = r.take(40)
	assert.False(t, ok, "7 entries are left")
	r.add(9, 100)
	i, ok := r.take(40)
	require.True(t, ok)
	assert.Equal(t, 9, i)
	r.give(7, 40)
	i, ok = r.take(47)
	require.True(t, ok)
	assert.Equal(t, 7, i)
}

// TestBuildsWithoutCgo: the daemon is also built where there is no C compiler.
func TestBuildsWithoutCgo(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("no go command here: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "vet", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}
