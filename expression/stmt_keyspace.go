package expression

import (
	"slices"
	"strings"
)

// The parts of a keyspace's path that every bucket has: default:bucket._default._default is the bucket itself.
const (
	defaultNamespace  = "default"
	defaultCollection = "_default" // and the scope's name
)

// onBucket reads ON and a bucket: its name, or the path of its default collection.
func (p *parser) onBucket() (string, error) {
	if err := p.wantWord("ON"); err != nil {
		return "", err
	}
	at := p.tok
	names, err := p.dotted("bucket", 3)
	if err != nil {
		return "", err
	}
	if len(names) > 1 && !slices.Equal(names[1:], []string{defaultCollection, defaultCollection}) {
		return "", p.otherCollection(at)
	}
	return names[0], nil
}

// indexPath reads the name of an index, alone or behind its bucket as old statements have it: bucket.name, and
// default:bucket._default._default.name.
func (p *parser) indexPath() (bucket, name string, err error) {
	at := p.tok
	names, err := p.dotted("index", 4)
	if err != nil {
		return "", "", err
	}
	switch n := len(names); {
	case n == 1:
		return "", names[0], nil
	case n == 2, n == 4 && slices.Equal(names[1:3], []string{defaultCollection, defaultCollection}):
		if wrong := wrongName("bucket", names[0]); wrong != "" {
			return "", "", p.fail(at, "%s", wrong)
		}
		return names[0], names[n-1], nil
	}
	return "", "", p.otherCollection(at)
}

func (p *parser) otherCollection(at token) error {
	return p.unsupported(at, "scopes and collections other than %s.%s are not supported: write ON and the bucket's name "+
		"alone (in backticks if it has a point)",
		defaultCollection, defaultCollection)
}

// dotted reads at most so many names between points, behind a namespace if there is one.
func (p *parser) dotted(what string, most int) (names []string, err error) {
	at := p.tok
	name, err := p.name(what)
	if err == nil && p.isOp(":") {
		if name != defaultNamespace {
			return nil, p.unsupported(at, "there is no namespace %q: the only one is %s", name, defaultNamespace)
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		at = p.tok
		name, err = p.name("bucket")
	}
	for err == nil {
		if len(names) == most {
			return nil, p.otherCollection(at)
		}
		names = append(names, name)
		more := false
		if more, err = p.acceptOp("."); err == nil && !more {
			return names, nil
		}
		if err == nil {
			name, err = p.name(what)
		}
	}
	return nil, err
}

// mistyped is the error for a token that cannot stand here, with the one of these words that it may have been meant to
// be.
func (p *parser) mistyped(wanted string, words ...string) error {
	if p.tok.kind == tokWord {
		like := nearest(p.tok.value, words)
		for _, w := range words { // DESCENDING
			if strings.HasPrefix(strings.ToUpper(p.tok.value), w) {
				like = w
			}
		}
		if like != "" && !strings.EqualFold(like, p.tok.value) {
			return p.fail(p.tok, "expected %s, found %s; did you mean %s?", wanted, p.describe(p.tok), like)
		}
	}
	return p.unexpected(wanted)
}

// unknown is the error for a name that is none of the known ones.
func (p *parser) unknown(tok token, what string, known ...string) error {
	meant := ""
	if like := nearest(tok.value, known); like != "" {
		meant = " (did you mean " + like + "?)"
	}
	return p.fail(tok, "unknown %s %q%s; known: %s", what, tok.value, meant, strings.Join(known, ", "))
}

// behind is the error for what stands behind a whole statement.
func (p *parser) behind(s Statement) error {
	const end = "; or the end of the statement"
	if _, ok := s.(*CreateIndex); !ok {
		return p.unexpected(end)
	}
	clauses := []string{"PARTITION", "WHERE", "USING", "WITH"}
	if p.tok.kind == tokWord && slices.Contains(clauses, strings.ToUpper(p.tok.value)) {
		return p.fail(p.tok, "expected %s, found the reserved word %s: the clauses are PARTITION BY, WHERE, USING GSI, "+
			"WITH, each once and in this order",
			end, strings.ToUpper(p.tok.value))
	}
	return p.mistyped(end, clauses...)
}
