package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"tidemark/indexer/transport"
)

// TestTLS checks that frames are encrypted if both sides have certificates, and that a client that does not trust the
// server, or that does not use TLS, cannot connect.
func TestTLS(t *testing.T) {
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	f := serve(t, transport.ServerConfig{TLS: &tls.Config{Certificates: web.TLS.Certificates}}, acceptAll(sinkFuncs{}))
	var acked atomic.Uint64
	c := dial(t, f.addr, transport.Options{TLS: &tls.Config{RootCAs: roots}, OnAck: func(n uint64) { acked.Store(n) }})
	if err := c.Send(frameOf(t, 1, 10, []byte("key"))); err != nil {
		t.Fatal(err)
	}
	await(t, "acknowledgement", func() bool { return acked.Load() == 1 })
	for name, opts := range map[string]transport.Options{"without TLS": {}, "without trust": {TLS: &tls.Config{}}} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if _, err := transport.Dial(ctx, f.addr, hello(), opts); err == nil {
			t.Errorf("%s: got in", name)
		} else if name == "without trust" && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("%s: the reason is not named: %v", name, err)
		}
		cancel()
	}
}
