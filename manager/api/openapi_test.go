package api

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/prometheus/client_golang/prometheus"
)

// TestContractIsOpenAPI checks that the document conforms to the specification.
func TestContractIsOpenAPI(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Error(err)
	}
	if !doc.IsOpenAPI31OrLater() {
		t.Errorf("version %s", doc.OpenAPI)
	}
}

// TestContractIsComplete checks that every public call of the router is documented, and every documented one is a
// call.
func TestContractIsComplete(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	if doc.Components.SecuritySchemes["certificate"] == nil || len(doc.Components.SecuritySchemes) != 3 {
		t.Errorf("security schemes %v", doc.Components.SecuritySchemes)
	}
	documented := map[string]string{} // to its role
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			role, _ := op.Extensions["x-tidemark-role"].(string)
			documented[method+" "+path] = role
			switch {
			case op.Security == nil || (role == string(RoleNone)) != (len(*op.Security) == 0):
				t.Errorf("%s %s needs role %q and says security %v", method, path, role, op.Security)
			case role != string(RoleNone):
				for _, way := range *op.Security {
					for scheme, roles := range way {
						if doc.Components.SecuritySchemes[scheme] == nil || len(roles) != 1 || roles[0] != role {
							t.Errorf("%s %s: %s needs %v, want %s", method, path, scheme, roles, role)
						}
					}
				}
			}
		}
	}
	roles := []Role{RoleNone, RoleMetrics, RoleRead, RoleDDL, RoleAdmin, RoleComponent}
	for _, rt := range over(&ground{}).routes() {
		if !slices.Contains(roles, rt.role) {
			t.Errorf("%s %s needs role %q: want one of %v", rt.method, rt.path, rt.role, roles)
		}
		if rt.limit <= 0 && !rt.stream {
			t.Errorf("%s %s has no limit of time", rt.method, rt.path)
		}
		for _, path := range openPaths(rt.path) {
			role, ok := documented[rt.method+" "+path]
			if ok != (rt.role != RoleComponent) || ok && role != string(rt.role) {
				t.Errorf("%s %s is documented: %v, with role %q; the table says %q", rt.method, path, ok, role, rt.role)
			}
			delete(documented, rt.method+" "+path)
		}
	}
	for call := range documented {
		t.Errorf("%s is documented, and there is no such call", call)
	}
}

// TestDocumentedCallsAreRouted checks that the router finds each documented call, and no other method on its path.
func TestDocumentedCallsAreRouted(t *testing.T) {
	doc, err := openapi3.NewLoader().LoadFromData(OpenAPI())
	if err != nil {
		t.Fatal(err)
	}
	router := over(&ground{cfg: Config{Registry: prometheus.NewRegistry()}}).router(func(rt route) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, rt.doc.id) })
	})
	for path, item := range doc.Paths.Map() {
		where := strings.NewReplacer("{id}", "7", "{bucket}", "b", "{name}", "n", "{code}", "X").Replace(path)
		where = regexp.MustCompile(`\{\w+\}`).ReplaceAllString(where, "x")
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			w := httptest.NewRecorder()
			router.ServeHTTP(w, httptest.NewRequest(method, where, nil))
			op := item.GetOperation(method)
			if method == "HEAD" {
				op = item.Get
			}
			if of := doc.Paths.Value("/v1/indexes/{id}").GetOperation(strings.Replace(method, "HEAD", "GET", 1)); op == nil &&
				of != nil &&
				strings.HasPrefix(path, "/v1/indexes/{") && strings.Contains(path, ":") {
				op = of // an index whose name has a colon
			}
			switch {
			case op == nil && w.Code != http.StatusMethodNotAllowed:
				t.Errorf("%s %s is not documented, and answered with %d", method, where, w.Code)
			case op != nil && (w.Code != http.StatusOK || strings.TrimSuffix(op.OperationID, "ByName") != w.Body.String()):
				t.Errorf("%s %s: %d from %q, want %s", method, where, w.Code, w.Body, op.OperationID)
			}
		}
	}
}
