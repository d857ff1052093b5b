package kv

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
	"tidemark/internal/testing/rpctest"
)

// TestTable: the requests of the admin port are bounded, and docs/protocol.md lists them.
func TestTable(t *testing.T) {
	n := &Node{mapStreams: rpc.NewPlaces(maxMapStreams, "streams of maps")}
	rpctest.Whole(t, "An embedded KV node, --admin", n.adminTable())
}

// TestAdminRefusals: invalid requests to the admin port are refused as on other ports, and a page of another site
// cannot send commands with a password that the browser remembers.
func TestAdminRefusals(t *testing.T) {
	n := &Node{config: Config{User: testUser, Password: testPassword}}
	h := n.adminTable().Handler()
	large := strings.Repeat(" ", clusterBodyMax+1)
	for _, tc := range []struct {
		method, path, body, site, password string
		status                             int
		code                               errcode.Code
	}{
		{method: "GET", path: "/nonsense", status: 404, code: errcode.NotFound},
		{method: "DELETE", path: pathCluster, status: 405, code: errcode.MethodNotAllowed},
		{method: "POST", path: pathPause, body: "{}", status: 401, code: errcode.Unauthenticated},
		{method: "POST", path: pathPause, body: "{", password: testPassword, status: 400, code: errcode.BadRequest},
		{method: "POST", path: pathPause, body: large, password: testPassword, status: 413, code: errcode.BodyTooLarge},
		{method: "POST", path: pathFailOverNode, body: url.Values{"otpNode": {large}}.Encode(), password: testPassword,
			status: 413, code: errcode.BodyTooLarge},
		{method: "POST", path: pathPause, body: "{}", password: testPassword, site: "cross-site", status: 403,
			code: errcode.Forbidden},
	} {
		r := httptest.NewRequest(tc.method, tc.path, strings.NewReader(tc.body))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", tc.site)
		if tc.password != "" {
			r.SetBasicAuth(testUser, tc.password)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var p rpc.Problem
		if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil || w.Code != tc.status || p.Code != tc.code {
			t.Errorf("%s %s: %d %s %v, want %d %s", tc.method, tc.path, w.Code, w.Body, err, tc.status, tc.code)
		}
		if asks := w.Header().Get("WWW-Authenticate") != ""; asks != (tc.status == http.StatusUnauthorized) {
			t.Errorf("%s %s: it asks for a password: %t", tc.method, tc.path, asks)
		}
	}
}
