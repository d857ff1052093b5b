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

// TestUnknownParameters: each call takes the parameters that are documented of it, and refuses every other one by name.
func TestUnknownParameters(t *testing.T) {
	for _, rt := range over(&ground{}).routes() {
		check := func(query string) error { return rt.checkQuery(httptest.NewRequest(rt.method, "/x?"+query, nil)) }
		call := rt.method + " " + rt.path
		free := rt.role == RoleNone || rt.component() || rt.path == metricsPath
		for _, query := range []string{"wat=1", "wat", "%77at=2"} {
			refused(t, call+"?"+query, check(query), free, `unknown parameter "wat"`)
		}
		refused(t, call+" with half an escape", check("a=%z"), free, "cannot be read")
		for _, p := range rt.doc.params {
			value := "1"
			if len(p.enum) > 0 {
				value = p.enum[len(p.enum)-1]
				refused(t, call+" with a foreign "+p.name, check(p.name+"=wat"), free, p.name+"=wat: want "+p.enum[0])
			}
			refused(t, call+"?"+p.name, check(p.name+"="+value), true, "")
			refused(t, call+" beside "+p.name, check(p.name+"="+value+"&wat=1"), free, p.name)
			refused(t, call+" with a slip of the finger", check(p.name+"x="+value), free, "did you mean "+p.name+"?")
		}
		refused(t, call+" without a query", check(""), true, "")
	}
}

func refused(t *testing.T, call string, err error, free bool, detail string) {
	t.Helper()
	var p *rpc.Problem
	switch {
	case free && err != nil:
		t.Errorf("%s: %v", call, err)
	case !free && (!errors.As(err, &p) || p.Code != errcode.BadRequest || !strings.Contains(p.Detail, detail)):
		t.Errorf("%s: %v; want %s and %q", call, err, errcode.BadRequest, detail)
	}
}

// TestVerbsOfIndexes: what a GET is told about is what POST takes.
func TestVerbsOfIndexes(t *testing.T) {
	var verbs []string
	for _, rt := range over(&ground{}).routes() {
		if verb, of := strings.CutPrefix(rt.path, "/v1/indexes/{ref:.+}:"); of {
			verbs = append(verbs, verb)
		}
	}
	slices.Sort(verbs)
	if known := slices.Sorted(slices.Values(verbsOfIndexes())); len(verbs) == 0 || !slices.Equal(verbs, known) {
		t.Errorf("POST takes %v, a GET is told about %v", verbs, known)
	}
}
