package managerclient

import (
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/wire"
)

// TestOrToken: a client without a certificate is admitted with a token that a manager finds valid, which is then
// cached for a while. A token that the manager refuses is refused with its message, and a client without a token
// without a request.
func TestOrToken(t *testing.T) {
	asked := 0
	ms := start(t, func(w http.ResponseWriter, r *http.Request, ms *managers) {
		asked++
		var req wire.TokenCheck
		if err := rpc.Read(r, &req); err != nil || r.URL.Path != wire.TokenCheckPath ||
			req.Remote != "10.0.0.9:1" {
			t.Errorf("asked %s for %+v, %v", r.URL.Path, req, err)
		}
		if req.Token != "good" {
			refuse(http.StatusUnauthorized, errcode.Unauthenticated)(w, r, ms)
			return
		}
		rpc.Write(w, r, http.StatusOK, wire.TokenChecked{Principal: "prom"})
	})
	c := New(ms.urls, nil)
	defer c.Close()
	c.tokens.trust = time.Hour
	noCertificate := errors.New("no certificate")
	check := c.OrToken(func(*http.Request) error { return noCertificate })
	for _, x := range []struct {
		header, says string
		asked        int
	}{
		{"", "no certificate", 0},
		{"Basic Z29vZA==", "no certificate", 0},
		{"Bearer good", "", 1},
		{"bearer good", "", 1},
		{"Bearer bad", "because", 2},
		{"Bearer bad", "because", 3},
		{"Bearer " + strings.Repeat("a", maxToken+1), "is not valid", 3},
	} {
		r := httptest.NewRequest(http.MethodGet, "https://p1/metrics", nil)
		r.TLS, r.RemoteAddr = &tls.ConnectionState{}, "10.0.0.9:1"
		r.Header.Set("Authorization", x.header)
		err := check(r)
		if (x.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), x.says) || asked != x.asked {
			t.Errorf("%.20q: %v, asked %d times; want %q, %d", x.header, err, asked, x.says, x.asked)
		}
	}
	plain := httptest.NewRequest(http.MethodGet, "http://p1/metrics", nil)
	plain.Header.Set("Authorization", "Bearer good")
	if err := check(plain); !errors.Is(err, noCertificate) {
		t.Errorf("without TLS: %v", err)
	}
	if err := c.OrToken(func(*http.Request) error { return nil })(plain); err != nil {
		t.Errorf("with a certificate: %v", err)
	}
}

// TestTokensOfOneHost: a host with many tokens whose checks take long leaves slots for the checks of other hosts.
func TestTokensOfOneHost(t *testing.T) {
	ms := start(t, func(w http.ResponseWriter, r *http.Request, _ *managers) {
		var req wire.TokenCheck
		if err := rpc.Read(r, &req); err != nil {
			t.Error(err)
		}
		rpc.Write(w, r, http.StatusOK, wire.TokenChecked{Principal: "prom"})
	})
	c := New(ms.urls, nil)
	defer c.Close()
	for range 3 * tokensAtOnce / 4 { // these hang
		if err := c.tokens.asking.Enter("10.0.0.66"); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.checkToken(t.Context(), "good", "10.0.0.66:7"); err == nil || !strings.Contains(err.Error(), "10.0.0.66") {
		t.Errorf("one more of that host: %v", err)
	}
	if err := c.checkToken(t.Context(), "good", "10.0.0.9:1"); err != nil {
		t.Errorf("of another one: %v", err)
	}
}
