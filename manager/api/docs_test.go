package api

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestEveryCallIsDocumented checks that docs/api.md lists every call of users, and docs/protocol.md every one of
// components.
func TestEveryCallIsDocumented(t *testing.T) {
	name := regexp.MustCompile(`\{[^}]*\}(/\{[^}]*\})?`) // {id}, {bucket}/{name} and {…} are used in turn
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
		end := regexp.MustCompile(regexp.QuoteMeta(path) + "([`[? ]|$)") // not a part of a longer one
		if !end.MatchString(pages[page]) {
			t.Errorf("docs/%s.md does not name %s %s", page, rt.method, rt.path)
		}
	}
	if seen < 40 {
		t.Errorf("only %d calls: looked at the wrong table", seen)
	}
}
