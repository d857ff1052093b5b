package route

import (
	"github.com/prometheus/client_golang/prometheus"

	"tidemark/internal/tlsconf"
)

// registerCertificate registers the metric of the end of the process's certificate, if it has one.
func registerCertificate(r prometheus.Registerer, source *tlsconf.Source) {
	if _, ok := source.Ends(); !ok {
		return
	}
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "tidemark_certificate_end_timestamp_seconds",
		Help: "When the TLS certificate of this process, or its CA, ends, in Unix time."}, func() float64 {
		end, _ := source.Ends()
		return float64(end.Unix())
	}))
}
