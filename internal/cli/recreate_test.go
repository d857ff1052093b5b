package cli

import (
	"strings"
	"testing"

	"tidemark/index"
	"tidemark/manager/api/v1"
)

// TestRecreate checks that the output of `index list --ddl` creates the same indexes again; a definition that is not
// a CREATE INDEX is quoted in an error.
func TestRecreate(t *testing.T) {
	info := func(name, definition string, state index.State, deferred bool) v1.IndexInfo {
		return v1.IndexInfo{Bucket: "b", Name: name, Definition: definition, State: state, Deferred: deferred}
	}
	all, err := recreate([]v1.IndexInfo{
		info("a", "CREATE INDEX a ON b(x)", index.Maintenance, false),
		info("c", `CREATE INDEX c ON b(x) WITH {"defer_build":true}`, index.Pending, true),
		info("d", `CREATE INDEX d ON b(x) WITH {"defer_build":true}`, index.Maintenance, false),
		info("e", `CREATE INDEX e ON b(x) WITH {"defer_build":true}`, index.Pending, false), // its build is about to begin
		info("f", "CREATE INDEX f ON b(x)", index.Dropping, false),
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range all {
		got = append(got, s.String())
	}
	want := `CREATE INDEX a ON b(x); CREATE INDEX c ON b(x) WITH {"defer_build":true}; CREATE INDEX d ON b(x) WITH {"defer_build":true}; ` +
		`CREATE INDEX e ON b(x) WITH {"defer_build":true}; BUILD INDEX ON b(d, e)`
	if text := strings.Join(got, "; "); text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
	for definition, want := range map[string]string{
		"":                  "this version cannot read",
		"DROP INDEX a ON b": "is not one CREATE INDEX",
		"CREATE INDEX a ON b(x); CREATE INDEX a ON b(x)": "is not one CREATE INDEX",
		"CREATE INDEX a ON b(SOON(x))":                   "this version cannot read",
	} {
		_, err := recreate([]v1.IndexInfo{info("a", definition, index.Maintenance, false)})
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "b/a") ||
			strings.Contains(err.Error(), "%!") {
			t.Errorf("%q: %v", definition, err)
		}
	}
}
