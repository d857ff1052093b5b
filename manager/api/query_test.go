package api

import (
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"tidemark/errcode"
	"tidemark/internal/rpc"
)

// TestUnknownParameters checks that each call accepts its documented parameters, and names any other in its error.
func TestUnknownParameters(t *testing.T) {
	for _, rt := range over(&ground{}).routes() {
		check := func(query string) error { return rt.checkQuery(httptest.NewRequest(rt.method, "/x?"+query, nil)) }
		call := rt.method + " " + rt.path
		free := rt.role == RoleNone || rt.component() || rt.path == metricsPath
		for _, query := range []string{"wat=1", "wat", "%77at=2"} {
			refused(t, call+"?"+query, check(query), free, `unknown parameter "wat"`)
		}
		refused(t, call+" with half an escape", check("a=%z"), free, "is malformed")
		for _, p := range rt.doc.params {
			value := "1"
			if len(p.enum) > 0 {
				value = p.enum[len(p.enum)-1]
				refused(t, call+" with a foreign "+p.name, check(p.name+"=wat"), free, p.name+"=wat: want "+p.enum[0])
			}
			refused(t, call+"?"+p.name, check(p.name+"="+value), true, "")
			refused(t, call+" with two of "+p.name, check(p.name+"="+value+"&"+p.name+"="+value), free,
				p.name+" is given 2 times")
			refused(t, call+" beside "+p.name, check(p.name+"="+value+"&wat=1"), free, p.name)
			refused(t, call+" with a slip of the finger", check(p.name+"x="+value), free, "did you mean "+p.name+"?")
		}
		refused(t, call+" without a query", check(""), true, "")
	}
}

// TestSignificantHeaders checks that headers that a write depends on must be single and not empty, or absent; and that
// a compressed body is rejected.
func TestSignificantHeaders(t *testing.T) {
	for _, rt := range over(&ground{}).routes() {
		check := func(name string, values ...string) error {
			r := httptest.NewRequest(rt.method, "/x", nil)
			r.Header[name] = values
			return rt.checkHeaders(r)
		}
		call := rt.method + " " + rt.path
		codes := map[string]errcode.Code{HeaderKey: errcode.BadIdempotencyKey, headerIfMatch: errcode.BadRequest}
		for name, code := range codes {
			if !slices.Contains(rt.doc.headers, name) {
				code = ""
			}
			refusedAs(t, call+" with an empty "+name, check(name, ""), code, name+" is empty")
			refusedAs(t, call+" with two of "+name, check(name, "1", "1"), code, name+" is given 2 times")
			refusedAs(t, call+" with "+name, check(name, "1"), "", "")
			refusedAs(t, call+" without "+name, check(name), "", "")
		}
		refusedAs(t, call+" packed", check("Content-Encoding", "gzip"), errcode.UnsupportedMediaType, `"gzip"`)
		refusedAs(t, call+" as it is", check("Content-Encoding", "identity"), "", "")
	}
}

func refused(t *testing.T, call string, err error, free bool, detail string) {
	t.Helper()
	code := errcode.BadRequest
	if free {
		code = ""
	}
	refusedAs(t, call, err, code, detail)
}

// refusedAs checks that err has the code, or is nil for none.
func refusedAs(t *testing.T, call string, err error, code errcode.Code, detail string) {
	t.Helper()
	var p *rpc.Problem
	switch {
	case code == "" && err != nil:
		t.Errorf("%s: %v", call, err)
	case code != "" && (!errors.As(err, &p) || p.Code != code || !strings.Contains(p.Detail, detail)):
		t.Errorf("%s: %v; want %s and %q", call, err, code, detail)
	}
}

// TestVerbsOfIndexes checks that the verbs suggested to a GET are those of POST.
func TestVerbsOfIndexes(t *testing.T) {
	var verbs []string
	for _, rt := range over(&ground{}).routes() {
		if verb, of := strings.CutPrefix(rt.path, "/v1/indexes/{ref:.+}:"); of {
			verbs = append(verbs, verb)
		}
	}
	slices.Sort(verbs)
	if known := slices.Sorted(slices.Values(verbsOfIndexes())); len(verbs) == 0 || !slices.Equal(verbs, known) {
		t.Errorf("POST takes %v, a GET is answered with %v", verbs, known)
	}
}
