package manager

import (
	"slices"
	"strings"
	"sync"
	"unicode"

	gometrics "github.com/armon/go-metrics"
	"github.com/prometheus/client_golang/prometheus"
)

// showLibrary exports the metrics of hashicorp/raft and raft-boltdb through a registry. The library has one metrics
// receiver per process; showLibrary sets it.
func showLibrary(registry *prometheus.Registry) error {
	cfg := gometrics.DefaultConfig("")
	cfg.EnableHostname, cfg.EnableRuntimeMetrics = false, false
	_, err := gometrics.NewGlobal(cfg, newLibrarySink(registry))
	return err
}

// librarySink receives the measurements of hashicorp/raft and raft-boltdb and exports them by Prometheus'
// conventions: words separated by underscores (raft.fsm.lastRestoreDuration becomes
// raft_fsm_last_restore_duration_seconds), seconds in place of milliseconds, _total after a counter's name,
// histograms for samples.
type librarySink struct {
	registry *prometheus.Registry
	vectors  sync.Map // library's name and labels, joined → the series
	making   sync.Mutex
}

func newLibrarySink(registry *prometheus.Registry) *librarySink {
	return &librarySink{registry: registry}
}

// sizes maps the samples that are not durations to their unit; "" if the name contains it.
var sizes = map[string]string{"raft.boltdb.logBatchSize": "bytes", "raft.boltdb.logSize": "bytes",
	"raft.boltdb.logsPerBatch": "", "raft.boltdb.writeCapacity": "", "raft.fsm.applyBatchNum": ""}

// shares holds the samples between 0 and 1.
var shares = map[string]bool{"raft.thread.main.saturation": true, "raft.thread.fsm.saturation": true}

// times holds the gauges in milliseconds.
var times = map[string]bool{"raft.fsm.lastRestoreDuration": true, "raft.leader.oldestLogAge": true}

// Kinds of the library's measurements.
const (
	libraryGauge = iota
	libraryCounter
	librarySample
)

// series is one exported metric.
type series struct {
	scale float64
	take  func(labels []string, value float64)
}

// SetGauge implements metrics.MetricSink.
func (s *librarySink) SetGauge(key []string, v float32) { s.take(libraryGauge, key, v, nil) }

// SetGaugeWithLabels implements metrics.MetricSink.
func (s *librarySink) SetGaugeWithLabels(key []string, v float32, l []gometrics.Label) {
	s.take(libraryGauge, key, v, l)
}

// EmitKey implements metrics.MetricSink for events that cannot be aggregated. The library sends none.
func (s *librarySink) EmitKey([]string, float32) {}

// IncrCounter implements metrics.MetricSink.
func (s *librarySink) IncrCounter(key []string, v float32) { s.take(libraryCounter, key, v, nil) }

// IncrCounterWithLabels implements metrics.MetricSink.
func (s *librarySink) IncrCounterWithLabels(key []string, v float32, l []gometrics.Label) {
	s.take(libraryCounter, key, v, l)
}

// AddSample implements metrics.MetricSink.
func (s *librarySink) AddSample(key []string, v float32) { s.take(librarySample, key, v, nil) }

// AddSampleWithLabels implements metrics.MetricSink.
func (s *librarySink) AddSampleWithLabels(key []string, v float32, l []gometrics.Label) {
	s.take(librarySample, key, v, l)
}

// take passes a measurement to its series, which it creates at the first one.
func (s *librarySink) take(kind int, key []string, v float32, labels []gometrics.Label) {
	labels = slices.Clone(labels)
	slices.SortFunc(labels, func(a, b gometrics.Label) int { return strings.Compare(a.Name, b.Name) })
	names, values := make([]string, len(labels)), make([]string, len(labels))
	for i, l := range labels {
		names[i], values[i] = snake(l.Name), l.Value
	}
	name := strings.Join(key, ".")
	id := name + "{" + strings.Join(names, ",")
	found, ok := s.vectors.Load(id)
	if !ok {
		found = s.series(kind, id, name, names)
	}
	to := found.(*series)
	to.take(values, float64(v)*to.scale)
}

// series creates the exported metric for a measurement. If the name has already occurred with other labels, nothing
// is exported: the registry accepts one set of labels per name.
func (s *librarySink) series(kind int, id, name string, labels []string) *series {
	s.making.Lock()
	defer s.making.Unlock()
	if found, ok := s.vectors.Load(id); ok {
		return found.(*series)
	}
	to := &series{scale: 1}
	shown, help := snake(name), "Measured by hashicorp/raft as "+name+"."
	var collector prometheus.Collector
	switch kind {
	case libraryGauge:
		if times[name] {
			shown, to.scale = shown+"_seconds", 1e-3
		}
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: shown, Help: help}, labels)
		collector, to.take = v, func(l []string, x float64) { v.WithLabelValues(l...).Set(x) }
	case libraryCounter:
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: shown + "_total", Help: help}, labels)
		collector, to.take = v, func(l []string, x float64) { v.WithLabelValues(l...).Add(max(x, 0)) }
	default:
		opts := prometheus.HistogramOpts{Name: shown, Help: help}
		unit, size := sizes[name]
		switch {
		case size:
			opts.Name, opts.Buckets = strings.TrimSuffix(shown+"_"+unit, "_"), prometheus.ExponentialBuckets(1, 8, 9)
		case shares[name]:
			opts.Buckets = prometheus.LinearBuckets(0.1, 0.1, 9)
		default: // samples are in milliseconds
			opts.Name, opts.Buckets, to.scale = shown+"_seconds", prometheus.ExponentialBuckets(1e-4, 4, 9), 1e-3
		}
		v := prometheus.NewHistogramVec(opts, labels)
		collector, to.take = v, func(l []string, x float64) { v.WithLabelValues(l...).Observe(x) }
	}
	if err := s.registry.Register(collector); err != nil {
		to.take = func([]string, float64) {}
	}
	s.vectors.Store(id, to)
	return to
}

// snake returns a name in snake case: raft.leader.dispatchNumLogs becomes raft_leader_dispatch_num_logs.
func snake(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			b.WriteByte('_')
			continue
		case unicode.IsUpper(r) && i > 0 && runes[i-1] != '.' && (!unicode.IsUpper(runes[i-1]) ||
			i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
