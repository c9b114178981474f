package node

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/config"
	"github.com/kvxfer/kvxfer/internal/fault"
)

// RDMA payload cannot be over TLS: who wants all payload there gets no provider that moves it in clear.
func TestNoVerbsWherePayloadIsOverTLS(t *testing.T) {
	_, err := makeVerbs(&Node{cfg: config.Config{TLSLanes: true}}, nil)
	require.Equal(t, fault.NotSupported, fault.CodeOf(err))
	assert.ErrorContains(t, err, "--tls-lanes")
}
