package route

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemark/internal/tlsconf"
)

// TestNoCertificateMetricWithoutTLS checks that a process without a certificate has no metric of its end: an alert
// would treat 0 as a time long past.
func TestNoCertificateMetricWithoutTLS(t *testing.T) {
	dir := t.TempDir()
	if _, err := tlsconf.CreateCA(dir, "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	trusting, err := tlsconf.Open(tlsconf.Files{CA: filepath.Join(dir, tlsconf.CAFile)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, source := range map[string]*tlsconf.Source{"no TLS": nil, "CAs alone": trusting} {
		r := prometheus.NewRegistry()
		registerCertificate(r, source)
		if families, err := r.Gather(); err != nil || len(families) != 0 {
			t.Errorf("%s: %v %v", what, families, err)
		}
	}
}
