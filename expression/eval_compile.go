package expression

import (
	"bytes"
	"cmp"
	"fmt"

	"tidemark/collate"
	"tidemark/index"
)

// Source is the part of an index's definition that a Program evaluates.
type Source struct {
	Keys      []index.KeyExpr
	Where     string
	IsPrimary bool
}

// SourceOf returns the source of a definition.
func SourceOf(d *index.Definition) Source {
	return Source{Keys: d.Keys, Where: d.Where, IsPrimary: d.IsPrimary}
}

// Limits bound the cost of one document in one index.
type Limits struct {
	// KeyBytes bounds the bytes of one composite key as stored. A document with a longer key is left out, which counts
	// as an error.
	KeyBytes int
	// Keys bounds the keys of one document in one array index. A document with more is left out, which counts as an
	// error.
	Keys int
	// TotalBytes bounds the bytes of all keys of one document in one array index, each of which repeats the components
	// beside the element. A document with more is left out, which counts as an error.
	TotalBytes int
}

// DefaultKeyBytes is the default of Limits.KeyBytes.
const DefaultKeyBytes = 4096

// DefaultKeys is the default of Limits.Keys.
const DefaultKeys = 10000

// DefaultTotalBytes is the default of Limits.TotalBytes.
const DefaultTotalBytes = 16 << 20

// MaxSources bounds the indexes that one Program evaluates.
const MaxSources = 10000

// Program evaluates all indexes of a bucket. It is immutable; any number of goroutines may share it, each with its
// own Scratch.
type Program struct {
	root    *node
	slots   int
	sources []source
	wheres  []evaluator // distinct predicates
	limits  Limits
	xattrs  bool
}

// source is a compiled Source.
type source struct {
	primary    bool
	where      int  // in Program.wheres; -1: none
	array      int  // in components; -1: none
	missing    bool // documents whose leading component is MISSING are indexed, too
	components []component
}

// component is one component of a key: a slot, or an expression.
type component struct {
	slot   int // -1: eval
	eval   evaluator
	spread spreader // of a nested or flattened array key, or one with several components, instead of slot and eval
	desc   bool
	more   []bool // directions of the further components of a flattened array
}

// value is the result of an expression. data is the JSON text of a number, array or object, and a string without its
// encoding.
type value struct {
	kind collate.Kind
	data []byte
}

type evaluator func(s *Scratch) value

// Compile returns the Program for the indexes of a bucket, with the default limits. Index i of its results is
// sources[i]. Definitions that earlier versions accepted still compile, even if they would be refused as new ones.
// The error wraps ErrDefinition and names the source; if an expression is invalid, it also is a *SyntaxError.
func Compile(sources []Source) (*Program, error) {
	return CompileLimits(sources, Limits{})
}

// CompileLimits is Compile with other limits; zero means the default.
func CompileLimits(sources []Source, limits Limits) (*Program, error) {
	if err := notTooMany(len(sources)); err != nil {
		return nil, err
	}
	all := make([]*Parsed, len(sources))
	for i, s := range sources {
		var err error
		if all[i], err = ParseSource(s); err != nil {
			return nil, fmt.Errorf("%w: index %d of the bucket: %w", ErrDefinition, i, err)
		}
	}
	return together(all, limits), nil
}

// Together is Compile for parsed sources, each of which may be part of any number of Programs.
func Together(all []*Parsed) (*Program, error) {
	if err := notTooMany(len(all)); err != nil {
		return nil, err
	}
	return together(all, Limits{}), nil
}

func notTooMany(sources int) error {
	if sources > MaxSources {
		return fmt.Errorf("%w: %d indexes on one bucket, at most %d are evaluated", ErrDefinition, sources, MaxSources)
	}
	return nil
}

// together builds a Program. It cannot fail, because sources are validated by ParseSource.
func together(all []*Parsed, limits Limits) *Program {
	if limits.KeyBytes <= 0 {
		limits.KeyBytes = DefaultKeyBytes
	}
	if limits.Keys <= 0 {
		limits.Keys = DefaultKeys
	}
	if limits.TotalBytes <= 0 {
		limits.TotalBytes = DefaultTotalBytes
	}
	c := &compiler{root: &node{slot: -1}, wanted: map[*node]bool{}, wheres: map[string]int{}}
	wheres := make([]int, len(all))
	for i, s := range all {
		wheres[i] = c.take(s)
	}
	// All paths are known now, so slots can be numbered and closures can capture the numbers.
	p := &Program{root: c.root, slots: c.root.number(0, c.wanted), limits: limits, xattrs: c.xattrs,
		sources: make([]source, len(all))}
	for _, x := range c.predicates {
		p.wheres = append(p.wheres, x.compile(c))
	}
	for i, s := range all {
		out := source{primary: s.primary, where: wheres[i], array: s.array, missing: s.missing}
		for _, k := range s.keys {
			x, component := k.x, component{slot: -1, desc: k.desc[0], more: k.desc[1:]}
			array, isArray := x.(*ArrayKey)
			if isArray {
				x = array.X
			}
			if steps, ok := documentPath(x); ok {
				component.slot = c.root.add(steps).slot
			} else if isArray && apart(x) {
				component.spread = c.spread(x)
			} else {
				component.eval = x.compile(c)
			}
			out.components = append(out.components, component)
		}
		p.sources[i] = out
	}
	return p
}

// Xattrs reports whether an index uses extended attributes of documents.
func (p *Program) Xattrs() bool { return p.xattrs }

// Sources returns the number of indexes that the Program evaluates.
func (p *Program) Sources() int { return len(p.sources) }

// Parsed is a Source with parsed expressions. It is immutable.
type Parsed struct {
	primary   bool
	keys      []joined
	where     Expr   // nil: none
	canonical string // canonical text of where
	array     int    // position of the array key; -1: none
	missing   bool   // INCLUDE MISSING
}

type compiler struct {
	root       *node
	wanted     map[*node]bool
	wheres     map[string]int // by canonical text
	predicates []Expr
	xattrs     bool
	scope      []string // the variables bound at the present point of compilation
}

// ParseSource parses the expressions of a source. Errors are those of Compile, without the source's name; if an
// expression is invalid, the error also is a *SyntaxError.
func ParseSource(s Source) (*Parsed, error) {
	out := &Parsed{primary: s.IsPrimary, array: -1}
	if s.IsPrimary {
		if len(s.Keys) > 0 || s.Where != "" {
			return nil, fmt.Errorf("a primary index takes neither key expressions nor WHERE")
		}
		return out, nil
	}
	if len(s.Keys) == 0 || len(s.Keys) > MaxKeys {
		return nil, fmt.Errorf("%d key expressions, expected 1 to %d", len(s.Keys), MaxKeys)
	}
	read := 0
	var err error
	out.keys, err = join(s.Keys, func(text string) (Expr, error) {
		read++
		return parseWhole(text, stored((*parser).key))
	})
	if err != nil {
		return nil, fmt.Errorf("key expression %d: %w", read, err)
	}
	for i := range out.keys {
		if err := out.takeKey(i); err != nil {
			return nil, err
		}
	}
	if s.Where != "" {
		if out.where, err = parseWhole(s.Where, stored((*parser).whole)); err != nil {
			return nil, fmt.Errorf("WHERE: %w", err)
		}
		out.canonical = out.where.String()
	}
	return out, nil
}

// takeKey records the properties of key expression i.
func (p *Parsed) takeKey(i int) error {
	x, missing := bareKey(p.keys[i].x)
	if flat := flattened(x); flat != nil {
		missing = missing || flat.Parts[0].Missing
		if len(flat.Parts) != len(p.keys[i].desc) {
			return fmt.Errorf("key expression %d has %d components in one", i+1, len(flat.Parts))
		}
	}
	p.missing = p.missing || missing
	if _, array := x.(*ArrayKey); array {
		if p.array >= 0 {
			return fmt.Errorf("key expressions %d and %d are array keys; an index has at most one", p.array+1, i+1)
		}
		p.array = i
	}
	p.keys[i].x = x
	return nil
}

// take adds the paths of a source to the tree, and returns the number of its predicate, -1 if it has none. Equal
// predicates are shared.
func (c *compiler) take(s *Parsed) (where int) {
	for i := range s.keys {
		c.paths(s.keys[i].x)
	}
	if s.where == nil {
		return -1
	}
	where, known := c.wheres[s.canonical]
	if !known {
		where = len(c.predicates)
		c.wheres[s.canonical] = where
		c.predicates = append(c.predicates, s.where)
		c.paths(s.where)
	}
	return where
}

// paths adds the paths of an expression to the tree.
func (c *compiler) paths(x Expr) {
	c.xattrs = c.xattrs || is[*Xattr](x)
	if steps, ok := documentPath(x); ok {
		c.wanted[c.root.add(steps)] = true
		return
	}
	for _, o := range x.operands() {
		c.paths(o)
	}
}

// apart reports whether a spreader makes the elements of an array key: they have entries of their own, have several
// components, or may be MISSING.
func apart(x Expr) bool {
	switch x := x.(type) {
	case *Each:
		return isOfArrayKey(x.Body)
	case *Array:
		return true
	case *Nav:
		_, ok := column(x)
		return ok
	}
	return false
}

// documentPath returns the steps of a place in the document; none for the document itself.
func documentPath(x Expr) (steps []Step, ok bool) {
	switch x := x.(type) {
	case *Path:
		return x.Steps, true
	case *Self:
		return nil, true
	case *Nav:
		if _, ok := x.X.(*Self); ok {
			return x.Steps, true
		}
	}
	return nil, false
}

// place returns the evaluator of a place in the document.
func (c *compiler) place(steps []Step) evaluator {
	slot := c.root.add(steps).slot
	return func(s *Scratch) value { return s.at(slot) }
}

func (x *Path) compile(c *compiler) evaluator { return c.place(x.Steps) }

func (*Self) compile(c *compiler) evaluator { return c.place(nil) }

func (x *Nav) compile(c *compiler) evaluator {
	if steps, ok := documentPath(x); ok {
		return c.place(steps)
	}
	inner, steps := x.X.compile(c), x.Steps
	return func(s *Scratch) value { return s.navigate(inner(s), steps) }
}

func (x *Literal) compile(*compiler) evaluator {
	v := value{kind: x.Kind, data: []byte(x.Text)}
	return func(*Scratch) value { return v }
}

func (*DocID) compile(*compiler) evaluator {
	return func(s *Scratch) value { return value{kind: collate.String, data: idText(s.docID)} }
}

func (x *Not) compile(c *compiler) evaluator {
	inner := x.X.compile(c)
	return func(s *Scratch) value {
		k := s.truth(inner(s))
		switch k {
		case collate.True:
			k = collate.False
		case collate.False:
			k = collate.True
		}
		return value{kind: k}
	}
}

func (x *Minus) compile(c *compiler) evaluator {
	inner := x.X.compile(c)
	return func(s *Scratch) value { return s.negate(inner(s)) }
}

func (x *Is) compile(c *compiler) evaluator {
	inner := x.X.compile(c)
	yes, no := collate.True, collate.False
	if x.Not {
		yes, no = no, yes
	}
	what := x.What
	return func(s *Scratch) value {
		k := inner(s).kind
		switch {
		case what == collate.Null && k == collate.Missing:
			return value{kind: collate.Missing}
		case k == what, what == collate.True && k > collate.Null:
			return value{kind: yes}
		}
		return value{kind: no}
	}
}

// compile compiles AND or OR: the first operand that decides ends the evaluation; otherwise the strongest undecided
// value is the result.
func (x *Logic) compile(c *compiler) evaluator {
	operands := make([]evaluator, len(x.Operands))
	for i, o := range x.Operands {
		operands[i] = o.compile(c)
	}
	decides, otherwise := collate.False, collate.True
	strong, weak := collate.Missing, collate.Null // strong wins over weak
	if x.Op == OpOr {
		decides, otherwise = collate.True, collate.False
		strong, weak = weak, strong
	}
	return func(s *Scratch) value {
		result := otherwise
		for _, o := range operands {
			switch k := s.truth(o(s)); k {
			case decides:
				return value{kind: k}
			case strong:
				result = k
			case weak:
				if result != strong {
					result = k
				}
			}
		}
		return value{kind: result}
	}
}

// compile compiles a comparison.
func (x *Compare) compile(c *compiler) evaluator {
	left, right := x.L.compile(c), x.R.compile(c)
	holds := [3]bool{} // for less, equal, greater
	equality := x.Op == OpEqual || x.Op == OpNotEqual
	switch x.Op {
	case OpEqual:
		holds[1] = true
	case OpNotEqual:
		holds[0], holds[2] = true, true
	case OpLess:
		holds[0] = true
	case OpLessEqual:
		holds[0], holds[1] = true, true
	case OpGreater:
		holds[2] = true
	case OpGreaterEqual:
		holds[1], holds[2] = true, true
	}
	return func(s *Scratch) value {
		l, r := left(s), right(s)
		if worst := min(l.kind, r.kind); worst <= collate.Null {
			return value{kind: worst}
		}
		if equality {
			v := s.equal(l, r)
			if v.kind > collate.Null {
				v = boolean((v.kind == collate.True) == holds[1])
			}
			return v
		}
		c, known := s.compared(l, r)
		if !known {
			return null
		}
		return boolean(holds[cmp.Compare(c, 0)+1])
	}
}

// truth returns the truth value of an operand of AND, OR and NOT.
func (s *Scratch) truth(v value) collate.Kind {
	var yes bool
	switch v.kind {
	case collate.Number:
		s.spend(len(v.data) / stepBytes)
		yes = !isZero(v.data)
	case collate.String:
		yes = len(v.data) > 0
	case collate.Array, collate.Object:
		yes = !s.hollow(v)
	default:
		return v.kind
	}
	if yes {
		return collate.True
	}
	return collate.False
}

// isZero reports whether a number's text has the value 0, including underflow.
func isZero(text []byte) bool {
	var short [16]byte
	key, err := collate.AppendNumber(short[:0], text)
	return err == nil && bytes.Equal(key, zeroKey())
}

func zeroKey() []byte { return []byte{byte(collate.Number), 0x80, 0, 0, 0, 0, 0, 0, 0} }

// hollow reports whether an array or object is empty.
func (s *Scratch) hollow(v value) bool {
	body := v.data[1 : len(v.data)-1]
	for i, c := range body {
		if c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			s.spend(i / stepBytes)
			return false
		}
	}
	s.spend(len(body) / stepBytes)
	return true
}
