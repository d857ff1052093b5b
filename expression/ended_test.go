package expression

import "testing"

func TestEnded(t *testing.T) {
	for text, want := range map[string]bool{
		"":                                    false,
		"DROP INDEX b.i\n":                    false,
		"DROP INDEX b.i;\n":                   true,
		"DROP INDEX b.i ;\n\t ":               true,
		"DROP INDEX b.i; -- don't\n":          true,
		"DROP INDEX b.i; /* don't */\n":       true,
		"DROP INDEX b.i; /* and;\n":           false,
		"DROP INDEX b.i -- all;\n":            false,
		"DROP INDEX b.i -- all;\n ; ":         true,
		"DROP INDEX a.i; DROP\n":              false,
		"CREATE INDEX i ON b(`a;`)\n":         false,
		"CREATE INDEX i ON b(`a;`);\n":        true,
		"CREATE INDEX i ON b(x || \"';\");\n": true,
		`... WHERE a = "x\";"`:                false,
		`... WHERE a = "x\"y";`:               true,
		`... WHERE a = 'it''s';`:              true,
		"... WHERE a = 'x\n":                  true, // strings do not span lines: an error at once
		"CREATE INDEX i ON b(x ? y\n":         true, // an error at once
	} {
		if got := Ended(text); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
