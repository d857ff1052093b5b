package console

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

func ask(t *testing.T, method, target string, header map[string]string) *httptest.ResponseRecorder {
	t.Helper()
	h, err := Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
	}))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequestWithContext(t.Context(), method, target, nil)
	for k, v := range header {
		r.Header.Set(k, v)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestServed checks how files are served, and that all other requests are left to the API.
func TestServed(t *testing.T) {
	page := map[string]string{"Accept": "text/html,*/*"}
	for _, tc := range []struct {
		method, target string
		header         map[string]string
		status         int
		media          string
	}{
		{"GET", "/console/", nil, 200, "text/html; charset=utf-8"},
		{"HEAD", "/console/app.css", nil, 200, "text/css; charset=utf-8"},
		{"GET", "/console/app.js", nil, 200, "text/javascript; charset=utf-8"},
		{"GET", "/console/views/overview.js", nil, 200, "text/javascript; charset=utf-8"},
		{"GET", "/console/icon.svg", nil, 200, "image/svg+xml"},
		{"GET", "/console", nil, 307, ""},
		{"GET", "/", page, 307, ""},
		{"GET", "/", nil, 418, ""},
		{"POST", "/", page, 418, ""},
		{"GET", "/v1/status", page, 418, ""},
		{"POST", "/console/", nil, 405, ""},
		{"GET", "/console/no.js", nil, 404, ""},
		{"GET", "/console/../console.go", nil, 404, ""},
		{"GET", "/console/views/", nil, 404, ""},
	} {
		w := ask(t, tc.method, tc.target, tc.header)
		if w.Code != tc.status || tc.media != "" && w.Header().Get("Content-Type") != tc.media {
			t.Errorf("%s %s: %d %v", tc.method, tc.target, w.Code, w.Header())
		}
		if tc.status != 418 && tc.status != 307 && w.Header().Get("Content-Security-Policy") != Policy {
			t.Errorf("%s %s has no policy: %v", tc.method, tc.target, w.Header())
		}
	}
	first := ask(t, "GET", "/console/app.js", nil)
	known := map[string]string{"If-None-Match": first.Header().Get("ETag")}
	if again := ask(t, "GET", "/console/app.js", known); again.Code != 304 {
		t.Errorf("a file that the browser has: %d", again.Code)
	}
}

// TestNothingIsInline checks that no file contains anything that the policy refuses, or requests anything from
// another server.
func TestNothingIsInline(t *testing.T) {
	files, err := load()
	if err != nil {
		t.Fatal(err)
	}
	bad := regexp.MustCompile(`(?i)innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|` +
		`<style|<script>|\sstyle=|\son\w+="|javascript:`)
	far := regexp.MustCompile(`https?://[^'"\s)]+`)
	for name, f := range files {
		if found := bad.Find(f.body); found != nil {
			t.Errorf("%s has %q", name, found)
		}
		for _, u := range far.FindAllString(string(f.body), -1) {
			if u != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", name, u)
			}
		}
		if strings.HasSuffix(name, ".js") && len(f.body) > 64<<10 {
			t.Errorf("%s has %d bytes", name, len(f.body))
		}
	}
	if strings.Contains(Policy, "unsafe") {
		t.Errorf("the policy is %s", Policy)
	}
}
