package config

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
	"github.com/kvxfer/kvxfer/registry/natsaccess"
)

func TestEverySettingHasAField(t *testing.T) {
	for _, name := range names() {
		assert.Contains(t, fields, name)
	}
	assert.Len(t, fields, len(settings))
}

func TestNewChecksWhatAProgramGives(t *testing.T) {
	t.Setenv("KVXFER_LANES", "7")
	t.Setenv("KVXFER_CONFIG", "/nowhere")
	dir := t.TempDir()
	got, err := New(Config{Node: "n0", StateDir: dir, Socket: dir + "/s"})
	require.NoError(t, err)
	want, err := Load([]string{"--node", "n0", "--state-dir", dir, "--socket", dir + "/s", "--http", "off"}, nil)
	require.NoError(t, err)
	want.NoEnvironment = true
	assert.Equal(t, want, got)

	full := Config{Node: "n0", StateDir: dir, Socket: dir + "/s", Listen: "127.0.0.1:0", Advertise: "192.0.2.1:9", HTTP: "127.0.0.1:0", NATS: "nats://u:p@h:1",
		TLSCert: dir + "/c", TLSKey: dir + "/k", TLSCA: dir + "/a", TLSLanes: true, Tenant: "t", AllowTenants: []AllowedTenant{{Name: "a"}, {Name: "b", UIDs: []int{5, 6}}},
		AllowUIDs: []int{3}, Lanes: 2, MaxClients: 3, MaxRegions: 4, MaxLeases: 5, MaxTransfers: 6, DrainTimeout: time.Minute, Heartbeat: time.Second,
		TraceFile: dir + "/t", TraceKeep: 3, RegistryReplicas: 3, InsecureNATS: true,
		Registry: natsaccess.Files{User: "u", Password: dir + "/p", CA: dir + "/na", Cert: dir + "/nc", Key: dir + "/nk"}, LogLevel: "warn", LogFormat: "json", Providers: []string{"tcp"}, ProvidersNamed: true,
		RDMA: RDMA{Devices: []string{"mlx5_*", "rxe0:1"}, Exclude: []string{"mlx5_3"}, GID: "10.0.0.1", TrafficClass: 106, ServiceLevel: 3, PKey: 0x8001, Timeout: 14, Retries: 1, Lanes: 2,
			NoWindows: true, NoRelaxedOrdering: true}}
	got, err = New(full)
	require.NoError(t, err)
	full.NoEnvironment = true
	assert.Equal(t, &full, got)

	for field, c := range map[string]Config{
		"node": {Node: "a b"}, "lanes": {Lanes: -1}, "max-clients": {MaxClients: 1 << 20}, "heartbeat": {Heartbeat: time.Nanosecond}, "drain-timeout": {DrainTimeout: -1},
		"providers": {Providers: []string{"rdma"}}, "rdma-retries": {RDMA: RDMA{Retries: 7}}, "rdma-gid": {RDMA: RDMA{GID: "eth0"}}, "listen": {Listen: "0.0.0.0:0", Advertise: "192.0.2.1:9"}, "allow-tenants": {AllowTenants: []AllowedTenant{{Name: "a:5"}}}, "allow-uid": {AllowUIDs: []int{-1}},
		"tls-key": {TLSCert: dir + "/c"}, "nats": {NATS: "http://h"}, "nats-listen": {NATS: "nats://h", NATSListen: "127.0.0.1:0"},
	} {
		c.StateDir, c.Socket = dir, dir+"/s"
		_, err := New(c)
		require.ErrorIs(t, err, fault.ErrConfigInvalid, field)
		assert.Equal(t, field, fault.From("", err).Field)
	}
	for _, bad := range []AllowedTenant{{Name: ""}, {Name: "a,b"}, {Name: "a:1+2"}, {Name: "a", UIDs: []int{}}} {
		_, err := New(Config{StateDir: dir, Socket: dir + "/s", AllowTenants: []AllowedTenant{bad}})
		require.ErrorIs(t, err, fault.ErrConfigInvalid, "%q", bad)
	}
	_, err = New(Config{StateDir: dir, Socket: dir + "/s", Lanes: 99, MaxLeases: -3})
	var all interface{ Unwrap() []error }
	require.True(t, errors.As(err, &all))
	assert.Len(t, all.Unwrap(), 2)
	assert.ErrorContains(t, err, `"99" from the program is not allowed`)
}
