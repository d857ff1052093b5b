package expression_test

import (
	"strings"
	"testing"

	"tidemark/expression"
)

// TestInclude checks that the expressions of INCLUDE become the last components of the key, before those added by
// PARTITION BY, that a notice reports it, and that the canonical text parses to the same index.
func TestInclude(t *testing.T) {
	for text, want := range map[string]string{
		`CREATE INDEX i ON b(x) INCLUDE (y, LOWER(z))`:                                   `CREATE INDEX i ON b(x, y, LOWER(z))`,
		`create index i on b.s.c(x desc include missing) include(y) where z = 1`:         `CREATE INDEX i ON b.s.c(x INCLUDE MISSING DESC, y) WHERE z = 1`,
		`CREATE INDEX i ON b(ALL l) INCLUDE (META().cas) PARTITION BY HASH(META().cas)`:  `CREATE INDEX i ON b(ALL l, META().cas) PARTITION BY HASH(META().cas)`,
		`CREATE INDEX i ON b(x) INCLUDE (y) PARTITION BY HASH(z) WITH {"num_replica":1}`: `CREATE INDEX i ON b(x, y, z) PARTITION BY HASH(z) WITH {"num_replica":1}`,
		"CREATE INDEX i ON b(`include`, `a`) INCLUDE (`include`.x)":                      "CREATE INDEX i ON b(`include`, a, `include`.x)",
	} {
		all, err := expression.Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		s := all[0].(*expression.CreateIndex)
		if s.String() != want || len(s.Definition().Keys) != len(s.Keys) {
			t.Errorf("%s:\n%s, want\n%s", text, s, want)
		}
		if notices := s.Notices(); len(notices) == 0 ||
			!strings.Contains(notices[0], "one of the last components of the key") {
			t.Errorf("%s: no notice, %q", text, notices)
		}
		again, err := expression.Parse(s.String())
		if err != nil || again[0].String() != want || len(again[0].(*expression.CreateIndex).Notices()) > 0 {
			t.Errorf("%s: %v, %v", s, again, err)
		}
	}
}

// TestIncludeRefused checks that each refusal has a position and an alternative.
func TestIncludeRefused(t *testing.T) {
	for text, want := range map[string]string{
		`CREATE PRIMARY INDEX ON b INCLUDE (x)`:                               "column 27: the rows of a primary index contain only META().id",
		`CREATE INDEX i ON b(x) INCLUDE x`:                                    "column 32: expected (",
		`CREATE INDEX i ON b(x) INCLUDE ()`:                                   "column 33",
		`CREATE INDEX i ON b(x) INCLUDE (y DESC)`:                             "column 35",
		`CREATE INDEX i ON b(x) INCLUDE (y, x)`:                               "column 36: x is already part of the key",
		`CREATE INDEX i ON b(x INCLUDE MISSING) INCLUDE (x)`:                  "x is already part of the key",
		`CREATE INDEX i ON b(x) INCLUDE (y, y)`:                               "column 36: y is already part of the key",
		`CREATE INDEX i ON b(x) INCLUDE (META().id)`:                          "each row contains the document's id",
		`CREATE INDEX i ON b(x) INCLUDE (5)`:                                  "5 is the same for all documents",
		`CREATE INDEX i ON b(x) INCLUDE (DISTINCT l)`:                         "column 33: INCLUDE takes one value per document",
		`CREATE INDEX i ON b(x) INCLUDE (y`:                                   "column 34",
		`CREATE INDEX i ON b(x) WHERE z = 1 INCLUDE (y)`:                      "column 36: expected ; or the end of the statement, found the reserved word INCLUDE: the clauses are",
		`CREATE INDEX i ON b(x` + strings.Repeat(`,x`, 999) + `) INCLUDE (y)`: "already has 1000",
	} {
		_, err := expression.Parse(text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.80s: %v, want %q", text, err, want)
		}
	}
}
