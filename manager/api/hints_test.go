package api

import (
	"strings"
	"testing"

	"tidemark/expression"
	"tidemark/wire"
)

// TestFieldHints checks that a field in the key that no document has is reported, with the nearest name there is. A
// field that some documents have is not, nor is a field in a condition that resembles none, nor, if there are more
// documents than sampled, such a field in the key.
func TestFieldHints(t *testing.T) {
	r := &wire.FieldsReply{Documents: 20, Whole: true}
	for path, n := range map[string]int{"name": 20, "kind": 20, "geo": 3, "geo lat": 3, "geo lon": 3, "tags": 1,
		"two words": 0} {
		p := strings.Fields(path)
		if n == 0 {
			p = []string{path}
		}
		r.Fields = append(r.Fields, wire.FieldCount{Path: p, Documents: max(n, 1)})
	}
	for statement, want := range map[string]string{
		`CREATE INDEX i ON b(name, geo.lat)`:                            "",
		`CREATE INDEX i ON b(nam)`:                                      "0 of 20 sampled documents have nam; did you mean name?",
		`CREATE INDEX i ON b(Name, LOWER(nane))`:                        "0 of 20 sampled documents have Name; did you mean name?|0 of 20 sampled documents have nane; did you mean name?",
		`CREATE INDEX i ON b(nam, nam || "x")`:                          "0 of 20 sampled documents have nam; did you mean name?",
		`CREATE INDEX i ON b(geo.latt)`:                                 "0 of 20 sampled documents have geo.latt; did you mean geo.lat?",
		`CREATE INDEX i ON b(gee.lat)`:                                  "0 of 20 sampled documents have gee; did you mean geo?",
		"CREATE INDEX i ON b(`two wrods`)":                              "0 of 20 sampled documents have `two wrods`; did you mean `two words`?",
		`CREATE INDEX i ON b(population)`:                               "0 of 20 sampled documents have population",
		`CREATE INDEX i ON b(name) WHERE kin = "x"`:                     "0 of 20 sampled documents have kin; did you mean kind?",
		`CREATE INDEX i ON b(name) WHERE deleted_at IS MISSING`:         "",
		`CREATE INDEX i ON b(DISTINCT ARRAY v.x FOR v IN tags END)`:     "",
		`CREATE INDEX i ON b(DISTINCT ARRAY v.x FOR v IN tagz[0] END)`:  "0 of 20 sampled documents have tagz; did you mean tags?",
		`CREATE INDEX i ON b(META().id, META().cas)`:                    "",
		`CREATE PRIMARY INDEX i ON b`:                                   "",
		`CREATE INDEX i ON b(name, population) PARTITION BY HASH(kinn)`: "0 of 20 sampled documents have population|0 of 20 sampled documents have kinn; did you mean kind?",
	} {
		list, err := expression.Parse(statement)
		if err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
		d := list[0].(*expression.CreateIndex).Definition()
		if got := strings.Join(fieldHints(&d, r), "|"); got != want {
			t.Errorf("%s:\n%q, want\n%q", statement, got, want)
		}
		few := *r
		few.Whole = false
		for _, hint := range fieldHints(&d, &few) {
			if !strings.Contains(hint, "did you mean") || !strings.Contains(want, hint) {
				t.Errorf("%s: of some documents: %s", statement, hint)
			}
		}
		if got := fieldHints(&d, &wire.FieldsReply{}); len(got) > 0 {
			t.Errorf("%s: without documents: %q", statement, got)
		}
	}
}
