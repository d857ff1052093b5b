package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"tidemark/indexer/transport"
	"tidemark/internal/testing/pipenet"
)

// TestConnectionThatTheServerNeverRenews: a receiver that keeps its connection, as one would whose certificate is no
// longer good, is cut off within an hour; without TLS there is nothing to present again.
func TestConnectionThatTheServerNeverRenews(t *testing.T) {
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	for name, secured := range map[string]bool{"TLS": true, "plain": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pipes := pipenet.Listen()
				var lis net.Listener = pipes
				opts := transport.Options{Dial: pipes.Dial}
				if secured { // by the listener: the server does not know of it, and renews nothing
					lis = tls.NewListener(pipes, &tls.Config{Certificates: web.TLS.Certificates, NextProtos: []string{"h2"},
						Time: atIssue(web)})
					opts.TLS = &tls.Config{RootCAs: roots, ServerName: "example.com", Time: atIssue(web)}
				}
				srv := transport.NewServer(transport.ServerConfig{Logger: hclog.NewNullLogger()}, acceptAll(sinkFuncs{}))
				served := make(chan error, 1)
				go func() { served <- srv.Serve(lis) }()
				c, err := transport.Dial(t.Context(), "pipe.test:1", hello(), opts)
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				select {
				case <-c.Done():
				case <-time.After(2 * time.Hour):
				}
				lasted := time.Since(began)
				if err := c.Err(); secured && (lasted != time.Hour || err == nil ||
					!strings.Contains(err.Error(), "present its certificate again")) || !secured && err != nil {
					t.Errorf("it lasted %s: %v", lasted, err)
				}
				c.Close()
				srv.Stop()
				if err := <-served; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// atIssue returns a clock that shows a time at which the certificate is valid, which virtual time is not.
func atIssue(web *httptest.Server) func() time.Time {
	return func() time.Time { return web.Certificate().NotBefore.Add(time.Hour) }
}

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
