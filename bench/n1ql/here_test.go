package n1ql

import (
	"encoding/json"
	"strings"

	"tidemark/collate"
	"tidemark/expression"
	"tidemark/index"
)

// here evaluates with package expression, as the second component of a key. A longer key than an index takes is one
// here.
func here(s *expression.Scratch, r request) (out reply) {
	source := expression.Source{Keys: []index.KeyExpr{{Expr: "META().id"}, {Expr: r.Expr}}}
	p, err := expression.CompileLimits([]expression.Source{source}, expression.Limits{KeyBytes: 1 << 20})
	if err != nil {
		return reply{Parse: err.Error()}
	}
	result := p.EvaluateMeta(s, []byte("doc"), expression.DocMeta{CAS: 1, Flags: 3}, r.Doc)
	if err := result.Err(0); err != nil {
		return reply{Error: err.Error()}
	}
	key := result.Keys(0)[0]
	if m, _ := collate.MissingComponents(key, []bool{false, false}); len(m) > 0 {
		return reply{Missing: true}
	}
	text, err := collate.DecodeComposite(nil, key, []bool{false, false})
	if err != nil {
		return reply{Error: err.Error()}
	}
	return reply{Value: json.RawMessage(strings.TrimSuffix(strings.TrimPrefix(string(text), `["doc",`), "]"))}
}
