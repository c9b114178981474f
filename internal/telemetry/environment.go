package telemetry

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/kvxfer/kvxfer/internal/fault"
)

// settings is what the standard OTEL_* variables ask for. Only the choice whether and by which protocol to export
// is read here; endpoints, headers, TLS, compression, time-outs, sampler and limits are read by the SDK itself.
type settings struct {
	disabled bool   // OTEL_SDK_DISABLED=true: nothing at all, a trace file included
	otlp     bool   // export over OTLP
	grpc     bool   // over gRPC, else HTTP with protobuf bodies
	endpoint string // for the log; "" means the exporter's default
	dropAll  bool   // OTEL_TRACES_SAMPLER=always_off
}

// signal is what a variable is about, as its name has it.
type signal string

const (
	traces  signal = "TRACES"
	metrics signal = "METRICS"
)

// fromEnvironment reads the variables through getenv; an empty value counts as unset, as the standard says.
func fromEnvironment(getenv func(string) string, of signal) (settings, error) {
	var s settings
	if v := getenv("OTEL_SDK_DISABLED"); v != "" {
		// The standard has only "true" (any case) mean true and everything else false.
		s.disabled = strings.EqualFold(v, "true")
	}
	if err := checkSampler(getenv); err != nil {
		return s, err
	}
	s.dropAll = strings.EqualFold(strings.TrimSpace(getenv("OTEL_TRACES_SAMPLER")), "always_off")

	name := "OTEL_EXPORTER_OTLP_" + string(of) + "_ENDPOINT"
	if s.endpoint = getenv(name); s.endpoint == "" {
		name = "OTEL_EXPORTER_OTLP_ENDPOINT"
		s.endpoint = getenv(name)
	}
	// The standard's default is to export to localhost. A daemon that nobody asked to trace would then retry for
	// ever against nothing, so the default here is on only where an endpoint is named.
	s.otlp = s.endpoint != ""
	exporter := "OTEL_" + string(of) + "_EXPORTER"
	if v := strings.TrimSpace(getenv(exporter)); v != "" {
		s.otlp = false
		for _, e := range strings.Split(v, ",") {
			switch e = strings.TrimSpace(e); {
			case e == "otlp":
				s.otlp = true
			case e == "none", e == "prometheus" && of == metrics: // which is the page /metrics, and always there
			case of == metrics:
				return s, configInvalid(exporter, "%q is not one of otlp, prometheus, none", v)
			default:
				return s, configInvalid(exporter, "%q is not one of otlp, none (a trace file is asked for with --trace-file)", v)
			}
		}
	}
	if s.disabled || !s.otlp {
		return s, nil
	}
	// The exporters would only log a URL they cannot use and go to localhost instead.
	if s.endpoint != "" {
		u, err := url.Parse(s.endpoint)
		if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			return s, configInvalid(name, "must be a URL such as http://collector:4318 (scheme http or https, with a host)")
		}
		if p := u.Port(); p != "" {
			if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
				return s, configInvalid(name, "port must be 1 to 65535")
			}
		}
		s.endpoint = u.Scheme + "://" + u.Host + u.Path // without user and query, which may hold secrets
	}

	name = "OTEL_EXPORTER_OTLP_" + string(of) + "_PROTOCOL"
	proto := getenv(name)
	if proto == "" {
		name = "OTEL_EXPORTER_OTLP_PROTOCOL"
		proto = getenv(name)
	}
	switch proto {
	case "grpc":
		s.grpc = true
	case "", "http/protobuf":
	default:
		return s, configInvalid(name, "%q is not one of grpc, http/protobuf", proto)
	}
	return s, nil
}

// checkSampler refuses what the SDK would only log before it samples everything.
func checkSampler(getenv func(string) string) error {
	const name, arg = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	sampler := strings.ToLower(strings.TrimSpace(getenv(name)))
	switch sampler {
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
	case "traceidratio", "parentbased_traceidratio":
		if v := strings.TrimSpace(getenv(arg)); v != "" {
			if f, err := strconv.ParseFloat(v, 64); err != nil || !(f >= 0 && f <= 1) {
				return configInvalid(arg, "must be 0 to 1, a share of traces")
			}
		}
	default:
		return configInvalid(name, "%.80q is not one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, parentbased_traceidratio", sampler)
	}
	return nil
}

func configInvalid(field, format string, args ...any) error {
	e := fault.New(fault.ConfigInvalid, "telemetry", format, args...)
	e.Field = field
	return e
}
