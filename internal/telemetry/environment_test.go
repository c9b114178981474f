package telemetry

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/kvxfer/kvxfer/internal/fault"
)

func TestSettingsFromEnvironment(t *testing.T) {
	const ep, tep = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for name, tc := range map[string]struct {
		env   map[string]string
		want  settings
		field string // of the error, "" for none
	}{
		"nothing":                 {},
		"endpoint":                {env: map[string]string{ep: "http://c:4318"}, want: settings{otlp: true, endpoint: "http://c:4318"}},
		"traces endpoint wins":    {env: map[string]string{ep: "http://c:4318", tep: "https://d/x"}, want: settings{otlp: true, endpoint: "https://d/x"}},
		"no secret in the log":    {env: map[string]string{ep: "http://u:p@c:1/a?key=1"}, want: settings{otlp: true, endpoint: "http://c:1/a"}},
		"grpc":                    {env: map[string]string{ep: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, want: settings{otlp: true, grpc: true, endpoint: "http://c:4317"}},
		"traces protocol wins":    {env: map[string]string{ep: "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, want: settings{otlp: true, endpoint: "http://c:1"}},
		"exporter none":           {env: map[string]string{ep: "http://c:1", "OTEL_TRACES_EXPORTER": "none"}, want: settings{endpoint: "http://c:1"}},
		"exporter otlp alone":     {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp"}, want: settings{otlp: true}},
		"disabled":                {env: map[string]string{ep: "http://c:1", "OTEL_SDK_DISABLED": "TRUE"}, want: settings{disabled: true, otlp: true, endpoint: "http://c:1"}},
		"disabled is only true":   {env: map[string]string{"OTEL_SDK_DISABLED": "1"}},
		"always off":              {env: map[string]string{"OTEL_TRACES_SAMPLER": "always_off"}, want: settings{dropAll: true}},
		"ratio":                   {env: map[string]string{"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": " 0.25 "}},
		"bad sampler":             {env: map[string]string{"OTEL_TRACES_SAMPLER": "jaeger_remote"}, field: "OTEL_TRACES_SAMPLER"},
		"ratio above 1":           {env: map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "1.5"}, field: "OTEL_TRACES_SAMPLER_ARG"},
		"ratio of nothing":        {env: map[string]string{"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "NaN"}, field: "OTEL_TRACES_SAMPLER_ARG"},
		"bad exporter":            {env: map[string]string{"OTEL_TRACES_EXPORTER": "otlp,zipkin"}, field: "OTEL_TRACES_EXPORTER"},
		"bad protocol":            {env: map[string]string{ep: "http://c:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}, field: "OTEL_EXPORTER_OTLP_PROTOCOL"},
		"bad traces protocol":     {env: map[string]string{ep: "http://c:1", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "x"}, field: "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"},
		"endpoint without scheme": {env: map[string]string{ep: "localhost:4318"}, field: ep},
		"endpoint without host":   {env: map[string]string{tep: "http://"}, field: tep},
		"endpoint of bad port":    {env: map[string]string{tep: "http://c:70000"}, field: tep},
		"bad url is not used":     {env: map[string]string{ep: "::", "OTEL_TRACES_EXPORTER": "none"}, want: settings{endpoint: "::"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := fromEnvironment(func(k string) string { return tc.env[k] }, traces)
			if tc.field != "" {
				requireField(t, err, fault.ConfigInvalid, tc.field)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, tc.want, got)
		})
	}
}

func requireField(t *testing.T, err error, code fault.Code, field string) {
	t.Helper()
	var e *fault.Error
	require.True(t, errors.As(err, &e), "%v", err)
	require.Equal(t, code, e.Code)
	require.Equal(t, field, e.Field)
	require.NotEmpty(t, e.Detail)
}
