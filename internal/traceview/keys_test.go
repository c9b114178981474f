package traceview

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/kvxfer/kvxfer/internal/telemetry/attr"
)

// TestKeysAreTelemetrys holds the keys that are repeated here, to stay free of the tracing SDK, to their source.
func TestKeysAreTelemetrys(t *testing.T) {
	assert.EqualValues(t, attr.KeyNode, keyNode)
	assert.EqualValues(t, attr.KeyLayer, keyLayer)
	assert.EqualValues(t, attr.KeyBytes, keyBytes)
	assert.EqualValues(t, attr.KeyResult, keyResult)
	assert.EqualValues(t, attr.KeyProvider, keyProvider)
}
