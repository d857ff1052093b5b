// Package rpctest calls handlers as processes of each role would, for tests of authorization. It makes no
// connections: the certificates that it attaches count as verified by a port's TLS.
package rpctest

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"tidemark/internal/rpc/route"
	"tidemark/internal/tlsconf"
)

// Certificate returns a certificate of a role.
func Certificate(role tlsconf.Role) *x509.Certificate {
	return &x509.Certificate{URIs: []*url.URL{{Scheme: "tidemark", Host: string(role), Path: "/x"}}}
}

// As returns the status with which a handler answers a request over TLS; cert is nil for a sender without a
// certificate.
func As(h http.Handler, cert *x509.Certificate, method, path, body string) int {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.TLS = &tls.ConnectionState{HandshakeComplete: true}
	if cert != nil {
		r.TLS.PeerCertificates, r.TLS.VerifiedChains = []*x509.Certificate{cert}, [][]*x509.Certificate{{cert}}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code
}

// Roles calls each route of a table as each role, and without a certificate, with an empty body. want has, by method
// and path as the table has it, the roles that do not get a 403; nil: every caller, with or without a role. It
// returns the table's handler.
func Roles(t testing.TB, table *route.Table, want map[string][]tlsconf.Role) http.Handler {
	t.Helper()
	seen := map[string]bool{}
	h := table.Handler()
	for _, rt := range table.Routes {
		name := call(&rt)
		seen[name] = true
		may, known := want[name]
		if !known {
			t.Errorf("%s: nothing says who may ask it", name)
			continue
		}
		at := strings.ReplaceAll(rt.Path, "{id:[0-9]+}", "999")
		if code := As(h, nil, rt.Method, at, ""); (code == http.StatusForbidden) != (may != nil) {
			t.Errorf("%s without a certificate: %d", name, code)
		}
		for _, role := range tlsconf.Roles() {
			if code := As(h, Certificate(role), rt.Method, at, ""); (code == http.StatusForbidden) != (may != nil &&
				!slices.Contains(may, role)) {
				t.Errorf("%s by role %s: %d, of %v", name, role, code, may)
			}
		}
	}
	for name := range want {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
	return h
}
