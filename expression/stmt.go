package expression

import (
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemark/collate"
	"tidemark/index"
	"tidemark/partition"
)

const (
	// MaxStatements bounds the statements of one text.
	MaxStatements = 1000
	// MaxKeys bounds the components of a secondary key: the maximum of the cluster's limit key_expressions.
	MaxKeys = 1000
	// MaxNameBytes bounds the names of indexes and buckets.
	MaxNameBytes = 100
	// MaxReplicas bounds num_replica.
	MaxReplicas = 64
	// MaxNodes bounds the list of nodes, and the list of names to build.
	MaxNodes = 256
	// MaxNodeNameBytes bounds the name of one node.
	MaxNodeNameBytes = 256
	// PrimaryName is the name of a primary index created without a name.
	PrimaryName = "#primary"
)

// Statement is one of *CreateIndex, *DropIndex, *BuildIndex, *AlterIndex. String returns the canonical text, which
// parses to the same statement.
type Statement interface {
	String() string
	statement()
}

// CreateIndex is CREATE [PRIMARY] INDEX. Keys and Where are canonical text.
type CreateIndex struct {
	Name        string
	Keyspace    index.Keyspace
	IsPrimary   bool
	IfNotExists bool
	PartitionBy index.PartitionBy // as written: HASH(META().id), the default, appears here, too
	Keys        []index.KeyExpr
	Where       string
	With        With
	added       []string // key expressions that only PARTITION BY contains
	included    []string // and those of INCLUDE
}

// With holds the options of CREATE INDEX; nil means not given.
type With struct {
	DeferBuild   *bool
	NumReplica   *int
	NumPartition *int
	NumSlice     *int // a synonym of NumPartition
	Nodes        []string
	AutoSplit    *bool    // whether the number of slices is adapted automatically; nil: it is
	Ignored      []string // options that were given and have no effect here
}

// DropIndex is DROP [PRIMARY] INDEX.
type DropIndex struct {
	Name     string
	Keyspace index.Keyspace
	IfExists bool
}

// BuildIndex is BUILD INDEX: it starts building the deferred indexes of these names together.
type BuildIndex struct {
	Keyspace index.Keyspace
	Names    []string
}

func (*CreateIndex) statement() {}
func (*DropIndex) statement()   {}
func (*BuildIndex) statement()  {}

// Definition returns the definition that the statement describes. Partitions is 0 if the statement does not state it;
// id, state and everything that the coordinator sets are zero. Statement is the canonical text without IF NOT EXISTS.
func (s *CreateIndex) Definition() index.Definition {
	d := index.Definition{
		Name: s.Name, Bucket: s.Keyspace.Bucket, Member: s.Keyspace.Member(),
		IsPrimary: s.IsPrimary, Keys: s.Keys, Where: s.Where, Nodes: s.With.Nodes,
		Using: index.UsingOrdered, ExprType: index.ExprN1QL,
	}
	if s.With.DeferBuild != nil {
		d.Deferred = *s.With.DeferBuild
	}
	if s.With.AutoSplit != nil {
		d.AutoSplitOff = !*s.With.AutoSplit
	}
	if s.With.NumReplica != nil {
		d.Replicas = uint8(*s.With.NumReplica)
	}
	if n := s.With.NumPartition; n != nil {
		d.Partitions = uint16(*n)
	} else if n := s.With.NumSlice; n != nil {
		d.Partitions = uint16(*n)
	}
	if !byDocID(&s.PartitionBy) {
		d.PartitionBy = s.PartitionBy
	}
	if k, _ := partition.KindBy(d.PartitionBy.Scheme); k.Values {
		d.Partitions = uint16(len(d.PartitionBy.Values) + 1)
	}
	plain := *s
	plain.IfNotExists = false
	d.Statement = plain.String()
	return d
}

// Notices returns notes about options without effect and about key components that the statement implies.
func (s *CreateIndex) Notices() (all []string) {
	for _, option := range s.With.Ignored {
		all = append(all, option+" is ignored: sizes are measured")
	}
	for _, key := range s.included {
		all = append(all, key+" is one of the last components of the key: it orders rows whose other components are equal")
	}
	for _, key := range s.added {
		all = append(all, key+" was added as the last component of the key, because the key determines the slice of an entry")
	}
	return all
}

// String returns the canonical text.
func (s *CreateIndex) String() string {
	b := []byte("CREATE ")
	if s.IsPrimary {
		b = append(b, "PRIMARY "...)
	}
	b = append(b, "INDEX "...)
	if s.IfNotExists {
		b = append(b, "IF NOT EXISTS "...)
	}
	b = appendName(b, s.Name)
	b = appendKeyspace(append(b, " ON "...), s.Keyspace)
	if !s.IsPrimary {
		b = appendKeys(b, s.Keys)
	}
	b = appendPartitionBy(b, &s.PartitionBy)
	if s.Where != "" {
		b = append(append(b, " WHERE "...), s.Where...)
	}
	return string(s.With.appendTo(b))
}

// appendTo prints the given options, in the order of the table of options.
func (w With) appendTo(b []byte) []byte {
	sep := " WITH {"
	name := func(key string) {
		b = append(b, sep...)
		b = append(append(append(b, '"'), key...), `":`...)
		sep = ", "
	}
	if w.DeferBuild != nil {
		name("defer_build")
		b = strconv.AppendBool(b, *w.DeferBuild)
	}
	for _, o := range [...]struct {
		key   string
		value *int
	}{{"num_replica", w.NumReplica}, {"num_partition", w.NumPartition}, {"num_slice", w.NumSlice}} {
		if o.value != nil {
			name(o.key)
			b = strconv.AppendInt(b, int64(*o.value), 10)
		}
	}
	if w.Nodes != nil {
		name("nodes")
		for i, n := range w.Nodes {
			b = append(b, "[,"[min(i, 1)])
			b = collate.AppendQuoted(b, []byte(n))
		}
		b = append(b, ']')
	}
	if w.AutoSplit != nil {
		name("auto_split")
		b = strconv.AppendBool(b, *w.AutoSplit)
	}
	if sep == ", " {
		b = append(b, '}')
	}
	return b
}

// String returns the canonical text.
func (s *DropIndex) String() string {
	b := []byte("DROP INDEX ")
	if s.IfExists {
		b = append(b, "IF EXISTS "...)
	}
	b = appendName(b, s.Name)
	return string(appendKeyspace(append(b, " ON "...), s.Keyspace))
}

// String returns the canonical text.
func (s *BuildIndex) String() string {
	b := appendKeyspace([]byte("BUILD INDEX ON "), s.Keyspace)
	for i, n := range s.Names {
		b = append(b, [...]string{"(", ", "}[min(i, 1)]...)
		b = appendName(b, n)
	}
	return string(append(b, ')'))
}

// isOver reports whether a statement may end here.
func (p *parser) isOver() bool { return p.tok.kind == tokEnd || p.isOp(";") }

// semicolons consumes any number of semicolons.
func (p *parser) semicolons() error {
	for p.isOp(";") {
		if err := p.advance(); err != nil {
			return err
		}
	}
	return nil
}

// Parse parses one or more statements separated by semicolons. The error is a *SyntaxError.
func Parse(text string) ([]Statement, error) {
	p, err := newParser(text)
	if err != nil {
		return nil, err
	}
	var all []Statement
	for {
		if err := p.semicolons(); err != nil {
			return nil, err
		}
		if p.tok.kind == tokEnd {
			break
		}
		if len(all) == MaxStatements {
			return nil, p.fail(p.tok, "more than %d statements", MaxStatements)
		}
		start := p.tok.pos
		s, err := p.statement()
		if err != nil {
			return nil, err
		}
		if !p.isOver() {
			return nil, p.behind(s)
		}
		if p.tok.pos-start > MaxStatementBytes {
			return nil, errorAt(text, start, false, "the statement is longer than %d bytes", MaxStatementBytes)
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, p.fail(p.tok, "expected a statement, found %s", p.describe(p.tok))
	}
	return all, nil
}

func (p *parser) statement() (Statement, error) {
	tok := p.tok
	if tok.kind == tokWord {
		switch word := strings.ToUpper(tok.value); word {
		case "CREATE":
			return p.create()
		case "DROP":
			return p.drop()
		case "BUILD":
			return p.build()
		case "ALTER":
			return p.alter()
		case "SELECT":
			return nil, p.unsupported(tok, "SELECT is not supported: rows of an index are read by a scan (tidemark index scan, "+
				"POST /v1/indexes/BUCKET/NAME:scan)")
		case "INSERT", "UPSERT", "UPDATE", "DELETE", "MERGE", "EXPLAIN", "PREPARE", "EXECUTE", "GRANT", "REVOKE", "INFER":
			return nil, p.unsupported(tok, "%s is not supported: the statements are CREATE INDEX, BUILD INDEX, ALTER INDEX "+
				"and DROP INDEX", word)
		}
	}
	return nil, p.mistyped("CREATE, BUILD, ALTER or DROP", "CREATE", "BUILD", "ALTER", "DROP")
}

// create parses CREATE [PRIMARY] INDEX and all that follows.
func (p *parser) create() (Statement, error) {
	s := &CreateIndex{}
	if err := p.indexWords("CREATE", &s.IsPrimary); err != nil {
		return nil, err
	}
	if err := p.exists(true, &s.IfNotExists); err != nil {
		return nil, err
	}
	if s.IsPrimary && p.isWord("ON") {
		s.Name = PrimaryName
	} else {
		name, err := p.name("index")
		if err != nil {
			return nil, err
		}
		s.Name = name
	}
	if err := p.exists(true, &s.IfNotExists); err != nil {
		return nil, err
	}
	var err error
	if s.Keyspace, err = p.onKeyspace(); err != nil {
		return nil, err
	}
	if err := p.keys(s); err != nil {
		return nil, err
	}
	return s, p.clauses(s)
}

// clauses parses INCLUDE, PARTITION BY, WHERE, USING and WITH, in this order.
func (p *parser) clauses(s *CreateIndex) error {
	if err := p.include(s); err != nil {
		return err
	}
	if err := p.partitionBy(s); err != nil {
		return err
	}
	if err := p.where(s); err != nil {
		return err
	}
	if err := p.usingGSI(); err != nil {
		return err
	}
	at := p.tok
	if ok, err := p.acceptWord("WITH"); err != nil || !ok {
		return err
	}
	if err := p.with(&s.With); err != nil {
		return err
	}
	return p.countSlices(s, at)
}

// countSlices refuses a number of slices that contradicts the number of VALUES.
func (p *parser) countSlices(s *CreateIndex, at token) error {
	kind, _ := partition.KindBy(s.PartitionBy.Scheme)
	for _, n := range []*int{s.With.NumPartition, s.With.NumSlice} {
		if want := len(s.PartitionBy.Values) + 1; n != nil && kind.Values && *n != want {
			return p.fail(at, "%d values make %d slices, not %d: omit num_partition", want-1, want, *n)
		}
	}
	return nil
}

// where parses WHERE, if present.
func (p *parser) where(s *CreateIndex) error {
	at := p.tok
	if ok, err := p.acceptWord("WHERE"); err != nil || !ok {
		return err
	}
	if s.IsPrimary {
		return p.fail(at, "a primary index has every document: WHERE is not allowed")
	}
	x, err := p.expression(0)
	if err == nil {
		s.Where = x.String()
	}
	return err
}

// indexWords consumes the verb, PRIMARY if present, and INDEX.
func (p *parser) indexWords(verb string, primary *bool) (err error) {
	if err := p.wantWord(verb); err != nil {
		return err
	}
	if *primary, err = p.acceptWord("PRIMARY"); err != nil {
		return err
	}
	if p.tok.kind == tokWord && !*primary {
		switch word := strings.ToUpper(p.tok.value); word {
		case "VECTOR", "FULLTEXT", "SEARCH", "UNIQUE", "HYPERSCALE", "COMPOSITE", "SCOPE", "COLLECTION", "FUNCTION",
			"SEQUENCE", "BUCKET":
			return p.unsupported(p.tok, "%s %s is not supported: only %s [PRIMARY] INDEX is", verb, word, verb)
		}
	}
	return p.wantWord("INDEX")
}

// exists parses IF NOT EXISTS or, without not, IF EXISTS, if present and not parsed before.
func (p *parser) exists(not bool, seen *bool) error {
	at := p.tok
	words := []string{"IF", "EXISTS"}
	if not {
		words = []string{"IF", "NOT", "EXISTS"}
	}
	for i, word := range words {
		if ok, err := p.acceptWord(word); err != nil {
			return err
		} else if !ok && i == 0 {
			return nil
		} else if !ok {
			return p.fail(p.tok, "expected %s, found %s", strings.Join(words, " "), p.describe(p.tok))
		}
	}
	if *seen {
		return p.fail(at, "%s is given twice", strings.Join(words, " "))
	}
	*seen = true
	return nil
}

// name parses an identifier and checks it.
func (p *parser) name(what string) (string, error) {
	tok := p.tok
	switch {
	case tok.kind == tokWord && isReserved(tok.value):
		return "", p.fail(tok, "expected the name of the %s, found the reserved word %s; write `%s` in backticks if it is "+
			"the name",
			what, strings.ToUpper(tok.value), tok.value)
	case tok.kind == tokString:
		return "", p.fail(tok, "expected the name of the %s, found a string; write the name without quotes, or in "+
			"backticks", what)
	case !tok.isNamed():
		return "", p.unexpected("the name of the " + what)
	}
	if wrong := wrongName(what, tok.value); wrong != "" {
		return "", p.fail(tok, "%s", wrong)
	}
	if err := p.advance(); err != nil {
		return "", err
	}
	if tok.kind == tokWord && p.isOp("-") && p.tok.pos == tok.end {
		return "", p.dashed(tok)
	}
	return tok.value, nil
}

// dashed returns the error for a name that continues with a dash.
func (p *parser) dashed(tok token) error {
	whole := p.lex.text[tok.pos:]
	end := strings.IndexFunc(whole, func(r rune) bool { return r >= utf8.RuneSelf || r != '-' && !isWordPart(byte(r)) })
	if end < 0 {
		end = len(whole)
	}
	return p.fail(tok, "a name with characters other than letters, digits and _ must be written in backticks: `%s`",
		whole[:min(end, maxShown)])
}

// keys parses the key expressions; a primary index has none.
func (p *parser) keys(s *CreateIndex) error {
	if s.IsPrimary {
		if p.isOp("(") {
			return p.fail(p.tok, "a primary index has no key expressions: its key is META().id")
		}
		return nil
	}
	if err := p.wantOp("("); err != nil {
		return err
	}
	arrays := 0
	if err := p.separated(func() error { return p.keyComponent(s, &arrays) }); err != nil {
		return err
	}
	if p.isWord("VECTOR") {
		return p.unsupported(p.tok, "VECTOR is not supported: keys are compared in order, not by distance")
	}
	if !p.isOp(")") {
		return p.mistyped("an operator, ASC, DESC, a comma or )", "ASC", "DESC")
	}
	return p.advance()
}

// keyComponent parses one key expression with its direction, and counts array keys.
func (p *parser) keyComponent(s *CreateIndex, arrays *int) error {
	at := p.tok
	x, err := p.key()
	if err != nil {
		return err
	}
	if isConstant(x) {
		return p.fail(at, "a key component must not be a constant, which is the same for all documents; name a field")
	}
	desc, err := p.direction()
	if err != nil {
		return err
	}
	if x, err = p.includeMissing(x); err != nil {
		return err
	}
	plain, missing := bareKey(x)
	if missing && len(s.Keys) > 0 {
		return p.fail(at, "INCLUDE MISSING is allowed only for the leading key; MISSING in other keys is always indexed")
	}
	if _, ok := plain.(*ArrayKey); ok {
		if *arrays++; *arrays > 1 {
			return p.fail(at, "an index has at most one array key")
		}
	}
	return p.addKey(s, at, x, desc)
}

// addKey adds a key expression, or the parts of a flattened one.
func (p *parser) addKey(s *CreateIndex, at token, x Expr, desc bool) error {
	if len(s.Keys)+width(x) > MaxKeys {
		return p.fail(at, "a key has at most %d components", MaxKeys)
	}
	added := []index.KeyExpr{{Expr: x.String(), Desc: desc}}
	if flat := flattened(x); flat != nil {
		if desc && len(flat.Parts) > 1 {
			return p.fail(at, "write DESC after a part, within FLATTEN_KEYS(…)")
		}
		flat.Parts[0].Desc = flat.Parts[0].Desc || desc
		if _, missing := bareKey(x); missing {
			flat.Parts[0].Missing = true
		}
		if flat.Parts[0].Missing && len(s.Keys) > 0 {
			return p.fail(at, "INCLUDE MISSING is allowed only for the leading key; MISSING in other keys is always indexed")
		}
		var ok bool
		if added, ok = flattenedKeys(x); !ok {
			return p.fail(at, "the %d components, each of which repeats the array, have more than %d bytes in total",
				len(flat.Parts), MaxStatementBytes)
		}
	}
	s.Keys = append(s.Keys, added...)
	return nil
}

func (p *parser) direction() (desc bool, err error) {
	asc, err := p.acceptWord("ASC")
	if err == nil && !asc {
		desc, err = p.acceptWord("DESC")
	}
	return desc, err
}

// drop parses DROP INDEX.
func (p *parser) drop() (Statement, error) {
	s := &DropIndex{}
	var primary bool
	if err := p.indexWords("DROP", &primary); err != nil {
		return nil, err
	}
	if err := p.exists(false, &s.IfExists); err != nil {
		return nil, err
	}
	if primary && p.isWord("ON") {
		s.Name = PrimaryName
	} else {
		keyspace, name, err := p.indexPath()
		if err != nil {
			return nil, err
		}
		s.Keyspace, s.Name = keyspace, name
	}
	if err := p.exists(false, &s.IfExists); err != nil {
		return nil, err
	}
	if s.Keyspace.Bucket == "" {
		var err error
		if s.Keyspace, err = p.onKeyspace(); err != nil {
			return nil, err
		}
		if err := p.exists(false, &s.IfExists); err != nil {
			return nil, err
		}
	}
	return s, p.usingGSI()
}

func (p *parser) usingGSI() error {
	at := p.tok
	if ok, err := p.acceptWord("USING"); err != nil || !ok {
		return err
	}
	if p.isWord("VIEW") || p.isWord("FTS") {
		return p.unsupported(at, "USING %s is not supported: write USING GSI, or leave it out", strings.ToUpper(p.tok.value))
	}
	return p.wantWord("GSI")
}

// build parses BUILD INDEX.
func (p *parser) build() (Statement, error) {
	s := &BuildIndex{}
	var primary bool
	at := p.tok
	if err := p.indexWords("BUILD", &primary); err != nil {
		return nil, err
	}
	if primary {
		return nil, p.fail(at, "name a primary index like any other index: BUILD INDEX ON bucket(`%s`)", PrimaryName)
	}
	var err error
	if s.Keyspace, err = p.onKeyspace(); err != nil {
		return nil, err
	}
	if err := p.wantOp("("); err != nil {
		return nil, err
	}
	if err := p.separated(func() error { return p.buildNames(s) }); err != nil {
		return nil, err
	}
	if err := p.wantOp(")"); err != nil {
		return nil, err
	}
	return s, p.usingGSI()
}

// buildNames parses the name of an index to build, or a list of them.
func (p *parser) buildNames(s *BuildIndex) error {
	list, err := p.acceptOp("[")
	if err != nil {
		return err
	}
	if !list {
		return p.buildName(s)
	}
	if err := p.separated(func() error { return p.buildName(s) }); err != nil {
		return err
	}
	return p.wantOp("]")
}

// buildName parses the name of an index to build, which may be a string.
func (p *parser) buildName(s *BuildIndex) error {
	if len(s.Names) == MaxNodes {
		return p.fail(p.tok, "more than %d indexes at once", MaxNodes)
	}
	if p.isOp("(") || p.isWord("SELECT") {
		return p.unsupported(p.tok, "a subquery is not supported here: name the indexes; tidemark index build BUCKET "+
			"--all builds all that are deferred")
	}
	tok := p.tok
	if tok.kind != tokString {
		name, err := p.name("index")
		s.Names = append(s.Names, name)
		return err
	}
	if wrong := wrongName("index", tok.value); wrong != "" {
		return p.fail(tok, "%s", wrong)
	}
	s.Names = append(s.Names, tok.value)
	return p.advance()
}

// maxPartitions is the maximum of package partition.
const maxPartitions = partition.MaxPartitions
