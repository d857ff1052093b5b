package expression

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"tidemark/index"
	"tidemark/partition"
)

// CheckIndexName returns an error if an index must not have this name: letters, digits and # _ - . are allowed, but
// not a point or a dash at the beginning. The error wraps ErrDefinition.
func CheckIndexName(name string) error {
	return nameError(wrongName("index", name))
}

// CheckBucketName returns an error if a bucket must not have this name: letters, digits and _ - . % are allowed, but
// not a point or a dash at the beginning, as in the KV store. The error wraps ErrDefinition.
func CheckBucketName(name string) error {
	return nameError(wrongName("bucket", name))
}

func nameError(wrong string) error {
	if wrong == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrDefinition, wrong)
}

// isNamePart reports whether a character is allowed in every kind of name.
func isNamePart(r rune) bool { return r < utf8.RuneSelf && isWordPart(byte(r)) }

// wrongName returns what is wrong with a name, or "".
func wrongName(what, name string) string {
	if name == "" || len(name) > MaxNameBytes {
		return fmt.Sprintf("the name of the %s has %d bytes, expected 1 to %d", what, len(name), MaxNameBytes)
	}
	marks := "# _ - ."
	if what == "bucket" {
		marks = "_ - . %"
	}
	for i, r := range name {
		known := isNamePart(r) || r != ' ' && strings.ContainsRune(marks, r)
		if !known || i == 0 && (r == '.' || r == '-') {
			return fmt.Sprintf("unexpected %q in the name %q of the %s; expected letters, digits and %s, not beginning with a "+
				"point or a dash",
				r, name, what, marks)
		}
	}
	return ""
}

// withOf returns the options that correspond to a definition.
func withOf(d *index.Definition) (w With) {
	if d.Deferred {
		w.DeferBuild = &d.Deferred
	}
	if on := false; d.AutoSplitOff {
		w.AutoSplit = &on
	}
	if n := int(d.Replicas); n > 0 {
		w.NumReplica = &n
	}
	// Otherwise the values imply the number.
	kind, _ := partition.KindBy(d.PartitionBy.Scheme)
	if n := int(d.Partitions); n > 0 && (!kind.Values || n != len(d.PartitionBy.Values)+1) {
		w.NumPartition = &n
	}
	if len(d.Nodes) > 0 {
		w.Nodes = d.Nodes
	}
	return w
}

// Normalize checks a definition that does not come from Parse (names, counts, expressions), and replaces expressions
// and Statement by their canonical text. Partitions 0 means not given. The error wraps ErrDefinition or is a
// *SyntaxError.
func Normalize(d *index.Definition) error {
	s := CreateIndex{Name: d.Name, Keyspace: index.KeyspaceOf(d.Bucket, d.Member.Scope, d.Member.Collection),
		IsPrimary: d.IsPrimary, Keys: d.Keys, Where: d.Where, PartitionBy: d.PartitionBy, With: withOf(d)}
	if err := checkParts(&s); err != nil {
		return err
	}
	// The whole is parsed once more, because all rules are in the parser.
	all, err := Parse(s.String())
	if err != nil {
		return err
	}
	whole, ok := all[0].(*CreateIndex)
	if !ok || len(all) != 1 {
		return fmt.Errorf("%w: its text is not one statement: %s", ErrDefinition, s.String())
	}
	n := whole.Definition()
	d.Keys, d.Where, d.Statement, d.Using, d.ExprType = n.Keys, n.Where, n.Statement, n.Using, n.ExprType
	d.PartitionBy, d.Partitions = n.PartitionBy, n.Partitions
	d.Member.Scope, d.Member.Collection = n.Member.Scope, n.Member.Collection
	return nil
}

// checkKeys is the part of checkParts for key expressions.
func checkKeys(s *CreateIndex) error {
	switch {
	case s.IsPrimary && (len(s.Keys) > 0 || s.Where != ""):
		return fmt.Errorf("%w: a primary index takes neither key expressions nor WHERE", ErrDefinition)
	case !s.IsPrimary && len(s.Keys) == 0:
		return fmt.Errorf("%w: a secondary index has 1 to %d key expressions, found none", ErrDefinition, MaxKeys)
	}
	keys := make([]index.KeyExpr, len(s.Keys))
	for i, k := range s.Keys {
		x, err := ParseKey(k.Expr)
		if err != nil {
			return fmt.Errorf("%w: key expression %d: %w", ErrDefinition, i+1, err)
		}
		keys[i] = index.KeyExpr{Expr: x.String(), Desc: k.Desc}
	}
	s.Keys = keys
	return nil
}

// checkParts checks that each part is valid on its own, so that no part can change the meaning of another when they
// are printed together.
func checkParts(s *CreateIndex) error {
	if err := CheckIndexName(s.Name); err != nil {
		return err
	}
	if err := CheckBucketName(s.Keyspace.Bucket); err != nil {
		return err
	}
	if err := checkCollection(s.Keyspace); err != nil {
		return err
	}
	if err := checkKeys(s); err != nil {
		return err
	}
	if err := checkPartitionBy(s); err != nil {
		return err
	}
	if s.Where != "" {
		x, err := ParseExpression(s.Where)
		if err != nil {
			return fmt.Errorf("%w: WHERE: %w", ErrDefinition, err)
		}
		s.Where = x.String()
	}
	return nil
}

// checkCollection checks that a keyspace is a whole bucket, or names both a scope and a collection.
func checkCollection(k index.Keyspace) error {
	if k.IsDefault() {
		return nil
	}
	for _, name := range []string{k.Scope, k.Collection} {
		if name == "" {
			return fmt.Errorf("%w: name both a scope and a collection, or neither", ErrDefinition)
		}
		if wrong := wrongCollection(name); wrong != "" {
			return fmt.Errorf("%w: %s", ErrDefinition, wrong)
		}
	}
	return nil
}
