package kvxfer

import (
	"encoding/binary"
	"os"
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

// sampler says of a trace that begins in this process whether it is recorded.
type sampler func(trace.TraceID) bool

func always(trace.TraceID) bool { return true }

// ratioSampler takes that share of all traces. Every process, and OpenTelemetry's own samplers, decide the same of the same id.
func ratioSampler(ratio float64) sampler {
	below := uint64(ratio * (1 << 63))
	return func(id trace.TraceID) bool { return binary.BigEndian.Uint64(id[8:])>>1 < below }
}

// environmentSampler is what the program's OTEL_* variables say, as they do to OpenTelemetry's own SDKs. A value that cannot
// be read counts as the default, always: tracing breaks no transfer.
func environmentSampler() sampler {
	clean := func(name string) string { return strings.ToLower(strings.TrimSpace(os.Getenv(name))) }
	name := strings.TrimPrefix(clean("OTEL_TRACES_SAMPLER"), "parentbased_")
	switch {
	case clean("OTEL_SDK_DISABLED") == "true" || name == "always_off":
		return ratioSampler(0)
	case name == "traceidratio":
		if ratio, err := strconv.ParseFloat(clean("OTEL_TRACES_SAMPLER_ARG"), 64); err == nil && ratio >= 0 && ratio <= 1 {
			return ratioSampler(ratio)
		}
	}
	return always
}
