package rpc

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestCrossSiteRequestsAreRejected checks that requests sent by pages of other sites are rejected, also if their name
// was pointed at this machine, and that those of programs are not.
func TestCrossSiteRequestsAreRejected(t *testing.T) {
	for _, tc := range []struct {
		name, method, host, from string
		header                   map[string]string
		refused                  bool
	}{
		{name: "a program", method: "POST", host: "127.0.0.1:9520", from: "127.0.0.1:1"},
		{name: "localhost", method: "POST", host: "localhost:9520", from: "127.0.0.1:1"},
		{name: "IPv6", method: "POST", host: "[::1]:9520", from: "[::1]:1"},
		{name: "a name of the network", method: "POST", host: "box:9520", from: "127.0.0.1:1"},
		{name: "its own name", method: "POST", host: "M1.example.org:9520", from: "127.0.0.1:1"},
		{name: "another machine", method: "POST", host: "lb.example.org", from: "10.0.0.9:1"},
		{name: "with credentials", method: "POST", host: "lb.example.org", from: "127.0.0.1:1",
			header: map[string]string{"Authorization": "Bearer x"}},
		{name: "its own page", method: "POST", host: "127.0.0.1:9520", from: "127.0.0.1:1",
			header: map[string]string{"Sec-Fetch-Site": "same-origin"}},
		{name: "another site's page", method: "POST", host: "127.0.0.1:9520", from: "127.0.0.1:1",
			header: map[string]string{"Sec-Fetch-Site": "cross-site"}, refused: true},
		{name: "another site's page, an older browser", method: "POST", host: "127.0.0.1:9520", from: "127.0.0.1:1",
			header: map[string]string{"Origin": "http://evil.example"}, refused: true},
		{name: "with a password that the browser knows", method: "DELETE", host: "127.0.0.1:9520", from: "127.0.0.1:1",
			header: map[string]string{"Authorization": "Basic x", "Sec-Fetch-Site": "cross-site"}, refused: true},
		{name: "the name it listens on", method: "GET", host: "Listens.example.org:9520", from: "127.0.0.1:1"},
		{name: "a name that was pointed here", method: "GET", host: "evil.example:9520", from: "127.0.0.1:1", refused: true},
		{name: "the same over IPv6", method: "POST", host: "evil.example", from: "[::1]:1",
			header: map[string]string{"Origin": "http://evil.example"}, refused: true},
	} {
		r := httptest.NewRequest(tc.method, "/v1/statements", http.NoBody)
		r.Host, r.RemoteAddr = tc.host, tc.from
		for k, v := range tc.header {
			r.Header.Set(k, v)
		}
		err := CheckOrigin(r)
		if err == nil {
			err = CheckHost(r, "m1.example.org", "listens.example.org")
		}
		if (err != nil) != tc.refused {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}
