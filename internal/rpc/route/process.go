package route

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"tidemark/internal/tlsconf"
	"tidemark/internal/version"
)

// RegisterProcess registers the metrics that every process has: its version, those of the Go runtime and of the
// operating system's process, and the end of its certificate, if it has one.
func RegisterProcess(r prometheus.Registerer, source *tlsconf.Source) {
	i := version.Get()
	build := prometheus.NewGauge(prometheus.GaugeOpts{Name: "tidemark_build_info",
		Help:        "1; its labels describe the binary.",
		ConstLabels: prometheus.Labels{"version": i.Version, "revision": i.Revision, "goversion": i.Go}})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerCertificate(r, source)
}
