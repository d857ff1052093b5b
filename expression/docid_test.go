package expression_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/index"
)

// An arbitrary id has one text: in a primary index, as META().id, and as shown in JSON; its key is found by the
// displayed text.
func TestIdOfAnyBytes(t *testing.T) {
	p, err := expression.Compile([]expression.Source{{IsPrimary: true}, {Keys: []index.KeyExpr{{Expr: "META().id"}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"plain", "é", "\xff", "a\xff\xfeb", "\xe2\x82", "\xf0\x9f\x98x", "\xed\xa0\x80"} {
		var s expression.Scratch
		r := p.Evaluate(&s, []byte(id), []byte(`{}`))
		primary, meta := r.Keys(0), r.Keys(1)
		shown := collate.AppendQuoted(nil, []byte(id))
		asked, err := collate.AppendComposite(nil, [][]byte{shown}, []bool{false})
		if err != nil {
			t.Fatal(err)
		}
		if len(primary) != 1 || len(meta) != 1 || !bytes.Equal(primary[0], asked) || !bytes.Equal(meta[0], asked) {
			t.Errorf("%q: primary %x, META().id %x, what is shown (%s) asks for %x", id, primary, meta, shown, asked)
		}
		if std, err := json.Marshal(id); err != nil || string(std) != string(shown) && !bytes.Contains(std, []byte(`\ufffd`)) {
			t.Errorf("%q: %s by encoding/json, %s here", id, std, shown)
		}
	}
}
