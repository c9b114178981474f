package traceview

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/telemetry"
)

// TestKeysAreTelemetrys holds the keys that are repeated here, to stay free of the tracing SDK, to their source.
func TestKeysAreTelemetrys(t *testing.T) {
	assert.EqualValues(t, telemetry.KeyNode, keyNode)
	assert.EqualValues(t, telemetry.KeyLayer, keyLayer)
	assert.EqualValues(t, telemetry.KeyBytes, keyBytes)
	assert.EqualValues(t, telemetry.KeyProvider, keyProvider)
}
