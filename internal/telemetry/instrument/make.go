package instrument

import (
	"go.opentelemetry.io/otel/metric"
)

// row finds a metric. A name or kind that is not in the list is a defect of the caller, which the first start shows.
func row(name string, k Kind) *Doc {
	for i := range List {
		if d := &List[i]; d.Name == name && d.Kind == k {
			return d
		}
	}
	panic("instrument: no " + k.String() + " " + name + " in the list")
}

// must is for errors that only a wrong row can cause.
func must[T any](made T, err error) T {
	if err != nil {
		panic("instrument: " + err.Error())
	}
	return made
}

// NewCounter makes a counter that is read when metrics are collected.
func NewCounter(m metric.Meter, name string) metric.Int64ObservableCounter {
	d := row(name, Counter)
	return must(m.Int64ObservableCounter(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Meaning)))
}

// NewGauge makes a gauge that is read when metrics are collected.
func NewGauge(m metric.Meter, name string) metric.Int64ObservableGauge {
	d := row(name, Gauge)
	return must(m.Int64ObservableGauge(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Meaning)))
}

// NewAge makes a gauge of seconds that is read when metrics are collected.
func NewAge(m metric.Meter, name string) metric.Float64ObservableGauge {
	d := row(name, Gauge)
	return must(m.Float64ObservableGauge(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Meaning)))
}

// NewHistogram makes a histogram of seconds.
func NewHistogram(m metric.Meter, name string) metric.Float64Histogram {
	d := row(name, Histogram)
	return must(m.Float64Histogram(name, metric.WithUnit(d.Unit), metric.WithDescription(d.Meaning), metric.WithExplicitBucketBoundaries(d.buckets...)))
}

// Observe registers a callback of several instruments; the returned function takes it back.
func Observe(m metric.Meter, f metric.Callback, of ...metric.Observable) (stop func()) {
	r := must(m.RegisterCallback(f, of...))
	return func() { _ = r.Unregister() }
}
