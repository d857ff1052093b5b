package expression_test

import (
	"testing"

	"tidemark/expression"
)

// TestXattrs checks that an attribute is found by its whole name, that a malformed section has none, and that a Program
// reports whether it uses any.
func TestXattrs(t *testing.T) {
	p, err := expression.Compile([]expression.Source{
		{Keys: keysOf("META().xattrs.a")},
		{Keys: keysOf("n"), Where: `ANY v IN [1] SATISFIES META().xattrs.ab.x[1] = "y" END`},
	})
	if err != nil || !p.Xattrs() {
		t.Fatal(err, p.Xattrs())
	}
	var s expression.Scratch
	whole := attributes("ab", `{"x": [1, "y"]}`, "a", ` "A" `)
	for _, c := range []struct {
		section     []byte
		first, last int
	}{
		{nil, 0, 0}, {whole, 1, 1}, {attributes("ab", `"z"`), 0, 0}, {attributes("a", "b", "ab", "1"), 0, 0},
		{attributes("a", ""), 0, 0}, {attributes("a", "null"), 1, 0}, {whole[:len(whole)-1], 0, 1}, {whole[:10], 0, 0},
		{append([]byte{0, 0, 0, 0}, whole...), 1, 1}, {[]byte{255, 255, 255, 255, 'a', 0, '1', 0}, 0, 0},
		{[]byte{0, 0, 0, 2, 'a', 0}, 0, 0}, {[]byte{0, 0, 0, 3, 'a', 0, '1'}, 0, 0},
	} {
		r := p.EvaluateMeta(&s, []byte("id"), expression.DocMeta{Xattrs: c.section}, []byte(`{"n":1}`))
		if len(r.Keys(0)) != c.first || len(r.Keys(1)) != c.last || r.Errors > 0 {
			t.Errorf("%q: %q, %q, want %d and %d", c.section, r.Keys(0), r.Keys(1), c.first, c.last)
		}
	}
	if p, err := expression.Compile([]expression.Source{{Keys: keysOf("META().flags", "xattrs")}}); err != nil ||
		p.Xattrs() {
		t.Error(err, p.Xattrs())
	}
}
