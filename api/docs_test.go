package api

import (
	"os"
	"strings"
	"testing"
)

// TestEveryCallIsDocumented: docs/api.md names them all.
func TestEveryCallIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for _, rt := range (&API{}).routes() {
		path := strings.ReplaceAll(rt.path, "{ref:.+}", "{…}")
		for _, internal := range []string{"/v1/cluster/", "/v1/components/", "/v1/buckets/"} {
			if strings.HasPrefix(path, internal) {
				path = internal
			}
		}
		if !strings.Contains(text, path) && !strings.Contains(text, strings.ReplaceAll(path, "{…}", "{id}")) {
			t.Errorf("docs/api.md does not name %s", rt.path)
		}
	}
}
