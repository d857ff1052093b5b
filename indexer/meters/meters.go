// Package meters registers the metrics of an indexer's packages with a common prefix (docs/metrics.md). A duplicate
// name stops the program at its start. It does not serve metrics.
package meters

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const namespace, subsystem = "tidemark", "indexer"

// Counter registers a counter.
func Counter(r prometheus.Registerer, name, help string) prometheus.Counter {
	return promauto.With(r).NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name,
		Help: help})
}

// Counters registers counters with a label.
func Counters(r prometheus.Registerer, name, help, label string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name,
		Help: help}, []string{label})
}

// Seconds registers a histogram of durations in seconds. The first bucket bound is first, each further one twice the
// previous one.
func Seconds(r prometheus.Registerer, name, help string, first float64, bounds int) prometheus.Histogram {
	return promauto.With(r).NewHistogram(seconds(name, help, first, bounds))
}

// SecondsBy is Seconds with a label.
func SecondsBy(r prometheus.Registerer, name, help, label string, first float64, bounds int) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(seconds(name, help, first, bounds), []string{label})
}

func seconds(name, help string, first float64, bounds int) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
		Buckets: prometheus.ExponentialBuckets(first, 2, bounds)}
}

// Desc describes a metric that is collected at the time of a scrape.
func Desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
}
