package xfer

import "fmt"

// Unsettled says which of the gauges that the engine counts up and down are not 0, as they must be once it is closed.
func Unsettled(e *Engine) (out []string) {
	m := e.metrics
	for kind := range m.leases {
		for state := range m.leases[kind] {
			if n := m.leases[kind][state].Load(); n != 0 {
				out = append(out, fmt.Sprintf("%d leases %s %s", n, leaseNames[kind], stateNames[state]))
			}
		}
	}
	if b, n := m.heldBlocks.Load(), m.heldBytes.Load(); b != 0 || n != 0 {
		out = append(out, fmt.Sprintf("%d blocks held, %d bytes", b, n))
	}
	if n, _ := m.fences.oldest(e.o.Clock.Now()); n != 0 {
		out = append(out, fmt.Sprintf("%d fences pending", n))
	}
	return out
}
