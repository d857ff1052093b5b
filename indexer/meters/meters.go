// Package meters declares the figures of an indexer's rooms alike: each room registers its own, all under one prefix
// (docs/metrics.md). It promises that a name that is taken stops the program at its start; it shows nothing itself.
package meters

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const namespace, subsystem = "tidemark", "indexer"

// Counter registers a count.
func Counter(r prometheus.Registerer, name, help string) prometheus.Counter {
	return promauto.With(r).NewCounter(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name,
		Help: help})
}

// Counters registers counts by a label.
func Counters(r prometheus.Registerer, name, help, label string) *prometheus.CounterVec {
	return promauto.With(r).NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Subsystem: subsystem, Name: name,
		Help: help}, []string{label})
}

// Seconds registers how long something takes: from a first bound on, each of the others is twice the one before it.
func Seconds(r prometheus.Registerer, name, help string, first float64, bounds int) prometheus.Histogram {
	return promauto.With(r).NewHistogram(seconds(name, help, first, bounds))
}

// SecondsBy is Seconds by a label.
func SecondsBy(r prometheus.Registerer, name, help, label string, first float64, bounds int) *prometheus.HistogramVec {
	return promauto.With(r).NewHistogramVec(seconds(name, help, first, bounds), []string{label})
}

func seconds(name, help string, first float64, bounds int) prometheus.HistogramOpts {
	return prometheus.HistogramOpts{Namespace: namespace, Subsystem: subsystem, Name: name, Help: help,
		Buckets: prometheus.ExponentialBuckets(first, 2, bounds)}
}

// Desc describes a figure that is collected when somebody asks.
func Desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName(namespace, subsystem, name), help, labels, nil)
}
