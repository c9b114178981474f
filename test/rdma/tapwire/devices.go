package tapwire

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Where tests find what they run on; `make test-rdma` sets both.
const (
	EnvDevices = "KVXFER_RDMA_DEVICES" // RDMA devices, one or two, separated by commas: rxe_a,rxe_b or mlx5_0
	EnvWire    = "KVXFER_RDMA_WIRE"    // the two TAP devices below them: tap0,tap1; empty on real hardware
)

// Rig is what a test of RDMA runs on: a virtual machine's SoftRoCE devices or real ones.
type Rig struct {
	Devices []string // one (to itself) or two
	wire    *Wire
}

// Get returns the rig, with its ports active, and skips the test where there is none. The wire lives as long as the test, so a
// test has one rig and does not run in parallel to others.
func Get(t testing.TB) Rig {
	t.Helper()
	devices := split(os.Getenv(EnvDevices))
	if len(devices) == 0 {
		t.Skipf("no RDMA device: %s is not set (make test-rdma sets it)", EnvDevices)
	}
	r := Rig{Devices: devices}
	if taps := split(os.Getenv(EnvWire)); len(taps) == 2 {
		w, err := Open(taps[0], taps[1])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Errorf("wire: %v", err)
			}
		})
		r.wire = w
	}
	for _, d := range devices {
		waitActive(t, d)
	}
	return r
}

// Wire returns what carries the packets between both devices, and skips the test on real hardware, where nobody can hold them.
func (r Rig) Wire(t testing.TB) *Wire {
	t.Helper()
	if r.wire == nil {
		t.Skipf("packets of real devices cannot be held: %s is not set", EnvWire)
	}
	return r.wire
}

// Wired says whether there is a Wire.
func (r Rig) Wired() bool { return r.wire != nil }

// waitActive waits for the first port of a device: a TAP device has a carrier only since it was opened.
func waitActive(t testing.TB, device string) {
	t.Helper()
	state := filepath.Join("/sys/class/infiniband", device, "ports/1/state")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(state)
		if err != nil {
			t.Fatalf("RDMA device %s: %v", device, err)
		}
		if strings.Contains(string(b), "ACTIVE") {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("port 1 of RDMA device %s stays %q", device, strings.TrimSpace(string(b)))
		}
	}
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}
