// Command otlpsink is a real OTLP receiver for tests: the OpenTelemetry Collector's own, without the rest of the Collector.
// It takes traces over gRPC and over HTTP and appends each request to a file, one line of OTLP JSON each, in one write.
//
// It is a module of its own, so that what the receiver needs is no dependency of the daemon.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	noopmetric "go.opentelemetry.io/otel/metric/noop"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
	"go.uber.org/zap"
)

// host is what a receiver may ask of the Collector: nothing.
type host struct{}

func (host) GetExtensions() map[component.ID]component.Component { return nil }

// file appends what arrives.
type file struct {
	mu  sync.Mutex
	out *os.File
}

func (f *file) take(_ context.Context, traces ptrace.Traces) error {
	line, err := (&ptrace.JSONMarshaler{}).MarshalTraces(traces)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err = f.out.Write(append(line, '\n'))
	return err
}

func main() {
	grpc := flag.String("grpc", "", "ADDR to take OTLP over gRPC at")
	http := flag.String("http", "", "ADDR to take OTLP over HTTP at")
	out := flag.String("out", "", "FILE that OTLP JSON lines are appended to")
	flag.Parse()
	if err := run(*grpc, *http, *out); err != nil {
		fmt.Fprintln(os.Stderr, "otlpsink:", err)
		os.Exit(1)
	}
}

func run(grpc, http, out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	f, err := os.OpenFile(out, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	factory := otlpreceiver.NewFactory()
	config := factory.CreateDefaultConfig().(*otlpreceiver.Config)
	config.Protocols.GRPC.GetOrInsertDefault().NetAddr.Endpoint = grpc
	config.Protocols.HTTP.GetOrInsertDefault().ServerConfig.NetAddr.Endpoint = http
	traces, err := consumer.NewTraces((&file{out: f}).take)
	if err != nil {
		return err
	}
	r, err := factory.CreateTraces(ctx, receiver.Settings{ID: component.NewID(factory.Type()), TelemetrySettings: component.TelemetrySettings{
		Logger: zap.NewNop(), TracerProvider: nooptrace.NewTracerProvider(), MeterProvider: noopmetric.NewMeterProvider(), Resource: pcommon.NewResource(),
	}}, config, traces)
	if err != nil {
		return err
	}
	if err := r.Start(ctx, host{}); err != nil {
		return err
	}
	fmt.Println("serving")
	<-ctx.Done()
	return r.Shutdown(context.WithoutCancel(ctx))
}
