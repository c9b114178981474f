package node

import (
	"io/fs"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/telemetry"
	"github.com/kvxfer/kvxfer/internal/telemetry/instrument"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs"
	"github.com/kvxfer/kvxfer/rdma/verbs/sysfs/sysfstest"
)

// shownPorts gives the series of ports of a machine, as "name{labels}" without kvxfer_rdma_port_.
func shownPorts(t *testing.T, root fs.FS) map[string]float64 {
	t.Helper()
	m, err := telemetry.StartMetrics(t.Context(), telemetry.Options{NodeName: "n0", NoEnvironment: true})
	require.NoError(t, err)
	var wg sync.WaitGroup
	stop := measurePorts(m.Meter(), root, wg.Go)
	defer func() {
		stop()
		wg.Wait()
		require.NoError(t, m.Shutdown(t.Context()))
	}()
	out := map[string]float64{}
	require.Eventually(t, func() bool { // one that reads for longer than a scraper waits is shown at the next one
		_, body, err := m.Page(t.Context(), "")
		require.NoError(t, err)
		p := expfmt.NewTextParser(model.LegacyValidation)
		all, err := p.TextToMetricFamilies(strings.NewReader(string(body)))
		require.NoError(t, err)
		for name, f := range all {
			for _, x := range f.Metric {
				if name, found := strings.CutPrefix(name, "kvxfer_rdma_port_"); found {
					var labels []string
					for _, l := range x.Label {
						labels = append(labels, l.GetValue())
					}
					out[name+" "+strings.Join(labels, " ")] = x.GetCounter().GetValue() + x.GetGauge().GetValue()
				}
			}
		}
		return len(out) > 0 || len(sysfs.Ports(root)) == 0
	}, time.Minute, time.Millisecond)
	return out
}

func TestPortsAreMeasured(t *testing.T) {
	assert.Empty(t, shownPorts(t, fstest.MapFS{}))
	tree := sysfstest.New()
	mlx := sysfstest.RoCE("mlx5_0", "eth0", 0, 100, "10.0.0.1")
	mlx.Ports = append(mlx.Ports, mlx.Ports[0])
	mlx.Ports[1].Port, mlx.Ports[1].State = 2, "DOWN"
	tree.Device(mlx)
	tree.Counter("mlx5_0", 1, "counters", "port_xmit_data", 100)
	tree.Counter("mlx5_0", 1, "counters", "port_rcv_data", math.MaxUint64)
	tree.Counter("mlx5_0", 1, "counters", "port_xmit_packets", 3)
	tree.Counter("mlx5_0", 1, "counters", "port_rcv_packets", 4)
	tree.Counter("mlx5_0", 1, "hw_counters", "np_cnp_sent", 5)
	tree.Counter("mlx5_0", 1, "hw_counters", "of_no_interest", 5)
	assert.Equal(t, map[string]float64{"active mlx5_0 1": 1, "active mlx5_0 2": 0, "traffic_bytes_total mlx5_0 sent 1": 400,
		"traffic_bytes_total mlx5_0 received 1": math.MaxInt64, "packets_total mlx5_0 sent 1": 3, "packets_total mlx5_0 received 1": 4,
		"events_total mlx5_0 cnp_sent 1": 5}, shownPorts(t, tree))
}

func TestEventsOfPortsAreTheListed(t *testing.T) {
	var names []string
	for _, m := range sysfs.Events {
		names = append(names, string(m.Event))
	}
	assert.Equal(t, names, instrument.PortEventNames)
}
