package expression

import (
	"fmt"
	"slices"
	"strings"

	"tidemark/index"
)

// defaultNamespace may precede the path of a keyspace: default:bucket.scope.collection.
const defaultNamespace = "default"

// onKeyspace parses ON and a keyspace: a bucket's name, or the path of a collection.
func (p *parser) onKeyspace() (index.Keyspace, error) {
	if err := p.wantWord("ON"); err != nil {
		return index.Keyspace{}, err
	}
	at := p.tok
	names, err := p.dotted("bucket", 3)
	if err != nil {
		return index.Keyspace{}, err
	}
	return p.keyspace(at, names)
}

// keyspace returns the keyspace of the names of a path.
func (p *parser) keyspace(at token, names []string) (index.Keyspace, error) {
	switch len(names) {
	case 1:
		return index.InBucket(names[0]), nil
	case 3:
		for _, name := range names[1:] {
			if wrong := wrongCollection(name); wrong != "" {
				return index.Keyspace{}, p.fail(at, "%s", wrong)
			}
		}
		return index.KeyspaceOf(names[0], names[1], names[2]), nil
	}
	return index.Keyspace{}, p.fail(at, "expected a bucket, or bucket.scope.collection; a name with a point is written "+
		"in backticks")
}

// indexPath parses the name of an index, alone or after its keyspace as in older statements: bucket.name, and
// default:bucket.scope.collection.name.
func (p *parser) indexPath() (k index.Keyspace, name string, err error) {
	at := p.tok
	names, err := p.dotted("index", 4)
	if err != nil {
		return k, "", err
	}
	n := len(names) - 1
	if n == 0 {
		return k, names[0], nil
	}
	if k, err = p.keyspace(at, names[:n]); err != nil {
		return k, "", err
	}
	if wrong := wrongName("bucket", k.Bucket); wrong != "" {
		return k, "", p.fail(at, "%s", wrong)
	}
	return k, names[n], nil
}

// maxCollectionBytes bounds the name of a scope or collection.
const maxCollectionBytes = 251

// wrongCollection returns what is wrong with the name of a scope or collection, or "".
func wrongCollection(name string) string {
	switch {
	case name == index.DefaultCollection:
		return ""
	case len(name) > maxCollectionBytes:
		return fmt.Sprintf("the name of a scope or collection has %d bytes; at most %d", len(name), maxCollectionBytes)
	}
	for i, r := range name {
		part := isNamePart(r) || r == '-' || r == '%'
		if !part || i == 0 && (r == '_' || r == '%') {
			return fmt.Sprintf("unexpected %q in the name %q of a scope or collection; expected letters, digits and _ - %%, "+
				"not beginning with _ or %%", r, name)
		}
	}
	return ""
}

func appendKeyspace(b []byte, k index.Keyspace) []byte {
	b = appendName(b, k.Bucket)
	if k.IsDefault() {
		return b
	}
	b = appendName(append(b, '.'), k.Scope)
	return appendName(append(b, '.'), k.Collection)
}

// dotted parses at most so many names separated by points, after an optional namespace.
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
			return nil, p.fail(at, "the path has more than %d names: a keyspace is a bucket, or bucket.scope.collection", most)
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

// mistyped returns the error for a token that is not allowed here, with the one of these words that may have been
// meant.
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

// unknown returns the error for a name that is not among the known ones.
func (p *parser) unknown(tok token, what string, known ...string) error {
	meant := ""
	if like := nearest(tok.value, known); like != "" {
		meant = " (did you mean " + like + "?)"
	}
	return p.fail(tok, "unknown %s %q%s; known: %s", what, tok.value, meant, strings.Join(known, ", "))
}

// behind returns the error for text after a complete statement.
func (p *parser) behind(s Statement) error {
	const end = "; or the end of the statement"
	if _, ok := s.(*CreateIndex); !ok {
		return p.unexpected(end)
	}
	clauses := []string{"INCLUDE", "PARTITION", "WHERE", "USING", "WITH"}
	if p.tok.kind == tokWord && slices.Contains(clauses, strings.ToUpper(p.tok.value)) {
		return p.fail(p.tok, "expected %s, found the reserved word %s: the clauses are INCLUDE, PARTITION BY, WHERE, USING "+
			"GSI, WITH, each once and in this order", end, strings.ToUpper(p.tok.value))
	}
	return p.mistyped(end, clauses...)
}
