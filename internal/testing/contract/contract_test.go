package contract

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestCheckerReportsUndocumentedFields checks that what the document lacks is reported, and what it has is not.
func TestCheckerReportsUndocumentedFields(t *testing.T) {
	c, err := New()
	if err != nil {
		t.Fatal(err)
	}
	const list, problem, lines = "application/json", "application/problem+json", "application/x-ndjson"
	noSuch := `{"type":"/v1/errors/UNKNOWN_INDEX","title":"No such index","status":404,"code":"UNKNOWN_INDEX","detail":"x"}`
	for _, tc := range []struct {
		name, method, path, sent string
		status                   int
		media, body              string
		want                     string // in the report; empty: no report
	}{
		{"fine", "GET", "/v1/indexes", "", 200, list, `{"cas":1,"indexes":[]}`, ""},
		{"undocumented field", "GET", "/v1/indexes", "", 200, list, `{"cas":1,"indexes":[],"extra":1}`, "extra"},
		{"missing field", "GET", "/v1/indexes", "", 200, list, `{"cas":1}`, "indexes"},
		{"null list", "GET", "/v1/indexes", "", 200, list, `{"cas":1,"indexes":null}`, "indexes"},
		{"deep field", "GET", "/v1/indexes", "", 200, list, `{"cas":1,"indexes":[{"x":1}]}`, "indexes"},
		{"wrong type", "GET", "/v1/indexes", "", 200, list, `{"cas":"1","indexes":[]}`, "cas"},
		{"status", "GET", "/v1/indexes", "", 299, list, `{}`, "status"},
		{"media", "GET", "/v1/indexes", "", 200, "text/html", `x`, "text/html"},
		{"call", "GET", "/v1/nothing", "", 200, list, `{}`, "not in openapi.json"},
		{"no such call", "GET", "/v1/nothing", "", 404, problem, noSuch, ""},
		{"problem", "GET", "/v1/indexes/b/n", "", 404, problem, noSuch, ""},
		{"problem of another call", "GET", "/v1/indexes/b/n", "", 404, problem, strings.ReplaceAll(noSuch, "UNKNOWN_INDEX",
			"TOKEN_LOST"), "code"},
		{"problem with a field", "GET", "/v1/indexes/b/n", "", 404, problem, strings.Replace(noSuch, "{", `{"hint":"x",`, 1), "hint"},
		{"bad request accepted", "POST", "/v1/indexes:build", `{"bucket":"b"}`, 202, list, `{"results":[]}`, "names"},
		{"bad request refused", "POST", "/v1/indexes:build", `{"bucket":"b"}`, 400, problem, `{"type":"x","title":"x","status":400,"code":"BAD_REQUEST","detail":"x"}`, ""},
		{"rows", "POST", "/v1/indexes/b/n:scan", `{}`, 200, lines, "{\"key\":[1],\"id\":\"a\"}\n{\"end\":true,\"rows\":1,\"timestamp\":{\"id\":\"1.1\",\"hash\":\"1\"}}\n", ""},
		{"bad row", "POST", "/v1/indexes/b/n:scan", `{}`, 200, lines, "{\"key\":[1],\"id\":\"a\",\"x\":1}\n", "line 1"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			client := &http.Client{Transport: c.Transport(canned{tc.status, tc.media, tc.body},
				func(err error) { got = append(got, err.Error()) })}
			r, err := http.NewRequestWithContext(t.Context(), tc.method, "http://any:1"+tc.path, strings.NewReader(tc.sent))
			if err != nil {
				t.Fatal(err)
			}
			if tc.sent != "" {
				r.Header.Set("Content-Type", "application/json")
			}
			resp, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || string(body) != tc.body {
				t.Errorf("the test would see %q, %v", body, err)
			}
			if report := strings.Join(got, "; "); tc.want == "" && report != "" || !strings.Contains(report, tc.want) {
				t.Errorf("reported %q, want %q", report, tc.want)
			}
		})
	}
}

type canned struct {
	status      int
	media, body string
}

func (c canned) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: c.status, Header: http.Header{"Content-Type": {c.media}},
		Body: io.NopCloser(bytes.NewReader([]byte(c.body)))}, nil
}
