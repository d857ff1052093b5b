package api

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryCallIsDocumented: docs/api.md names every call that users have, docs/protocol.md every one of components.
func TestEveryCallIsDocumented(t *testing.T) {
	name := regexp.MustCompile(`\{[^}]*\}(/\{[^}]*\})?`) // {id}, {bucket}/{name} and {…} are written in turn
	pages := map[string]string{}
	for _, page := range []string{"api", "protocol"} {
		b, err := os.ReadFile("../../docs/" + page + ".md")
		if err != nil {
			t.Fatal(err)
		}
		pages[page] = name.ReplaceAllString(strings.ReplaceAll(string(b), "`…/", "`/v1/cluster/"), "{}")
	}
	seen := 0
	for _, rt := range over(&ground{}).routes() {
		page := "api"
		if rt.role == RoleComponent {
			page = "protocol"
		}
		seen++
		path := name.ReplaceAllString(rt.path, "{}")
		end := regexp.MustCompile(regexp.QuoteMeta(path) + "([`[? ]|$)") // no part of a longer one
		if !end.MatchString(pages[page]) {
			t.Errorf("docs/%s.md does not name %s %s", page, rt.method, rt.path)
		}
	}
	if seen < 40 {
		t.Errorf("only %d calls: looked at the wrong table", seen)
	}
}
