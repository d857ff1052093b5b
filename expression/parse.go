package expression

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"tidemark/collate"
)

const (
	// MaxTextBytes bounds a text of one or more statements.
	MaxTextBytes = 1 << 20
	// MaxStatementBytes bounds one statement, and one expression: the maximum of the cluster's limit statement_length.
	MaxStatementBytes = 256 << 10
	// MaxNesting bounds the nesting of operators, and that of parentheses: a value of a document, which may be
	// collate.MaxDepth deep, can be written as a constant within an expression of 64 levels. A split, which cuts a range
	// at values of documents, needs that.
	MaxNesting = collate.MaxDepth + 64
	// MaxPathSteps bounds the steps of a path.
	MaxPathSteps = 64
	// MaxElement bounds the array positions in a path, from either end.
	MaxElement = 1 << 20
)

// ParseExpression parses one expression. The error is a *SyntaxError.
func ParseExpression(text string) (Expr, error) {
	return parseWhole(text, (*parser).whole)
}

// ParseKey parses one key expression, without ASC or DESC: an expression or an *ArrayKey. The error is a
// *SyntaxError.
func ParseKey(text string) (Expr, error) { return parseWhole(text, (*parser).key) }

// parseWhole parses a text, and checks that its canonical text, which is what is stored, can be parsed again: it may
// be longer than the input, and has parentheses of its own.
func parseWhole(text string, read func(*parser) (Expr, error)) (Expr, error) {
	x, err := parseOnce(text, read)
	if err != nil {
		return nil, err
	}
	if canonical := x.String(); canonical != text {
		if _, err := parseOnce(canonical, read); err != nil {
			return nil, errorAt(text, 0, false, "the canonical form of the expression is too long or nested too deep: %s",
				oneLine(err))
		}
	}
	return x, nil
}

// oneLine returns the message of a syntax error without its position, which refers to another text.
func oneLine(err error) string {
	var syntax *SyntaxError
	if errors.As(err, &syntax) {
		return syntax.Message
	}
	return err.Error()
}

// stored makes read parse an expression of a stored definition: an earlier version may have accepted what is refused
// now.
func stored(read func(*parser) (Expr, error)) func(*parser) (Expr, error) {
	return func(p *parser) (Expr, error) {
		p.stored = true
		return read(p)
	}
}

// whole parses an expression.
func (p *parser) whole() (Expr, error) { return p.expression(0) }

func parseOnce(text string, read func(*parser) (Expr, error)) (Expr, error) {
	p, err := newParser(text)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxStatementBytes {
		return nil, p.lex.fail(MaxStatementBytes, "the expression is longer than %d bytes", MaxStatementBytes)
	}
	x, err := read(p)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != tokEnd {
		return nil, p.unexpected("an operator or the end")
	}
	return x, nil
}

// parser holds the current token. Errors are returned, never panicked.
type parser struct {
	lex         lexer
	tok         token
	operators   int      // nesting depth of operators
	parentheses int      // and of parentheses; counted apart, so that canonical text can be parsed again
	scope       []string // the bound variables, innermost last
	lookahead   int      // how many bodies of ARRAY … FOR are being parsed ahead
	nestable    bool     // the ARRAY … FOR being parsed may have an array key as its body
	stored      bool     // the text is from a stored definition
}

// newParser advances to the first token. It returns plain error so that a typed nil cannot be mistaken for an error.
func newParser(text string) (*parser, error) {
	p := &parser{lex: lexer{text: text}}
	if len(text) > MaxTextBytes {
		return nil, p.lex.fail(0, "the text has %d bytes; at most %d are read at once", len(text), MaxTextBytes)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *parser) advance() error {
	tok, err := p.lex.next()
	if err != nil {
		return err
	}
	p.tok = tok
	return nil
}

func (p *parser) fail(tok token, format string, args ...any) error {
	return errorAt(p.lex.text, tok.pos, false, format, args...)
}

func (p *parser) unsupported(tok token, format string, args ...any) error {
	return errorAt(p.lex.text, tok.pos, true, format, args...)
}

// unexpected returns the error for a token that is not allowed here.
func (p *parser) unexpected(wanted string) error {
	return p.fail(p.tok, "expected %s, found %s", wanted, p.describe(p.tok))
}

func (p *parser) describe(tok token) string {
	switch {
	case tok.kind == tokEnd:
		return "the end"
	case tok.kind == tokWord && isReserved(tok.value):
		return "the reserved word " + strings.ToUpper(tok.value)
	case tok.end-tok.pos > maxShown:
		return p.lex.text[tok.pos:tok.pos+maxShown] + "…"
	}
	return p.lex.text[tok.pos:tok.end]
}

// maxShown bounds how many bytes of a token a message repeats.
const maxShown = 40

// isOp and isWord check the current token.
func (p *parser) isOp(op string) bool { return p.tok.kind == tokOp && p.tok.value == op }

func (p *parser) isWord(word string) bool {
	return p.tok.kind == tokWord && strings.EqualFold(p.tok.value, word)
}

// acceptOp and acceptWord consume the current token if it matches.
func (p *parser) acceptOp(op string) (bool, error) {
	if !p.isOp(op) {
		return false, nil
	}
	return true, p.advance()
}

func (p *parser) acceptWord(word string) (bool, error) {
	if !p.isWord(word) {
		return false, nil
	}
	return true, p.advance()
}

// separated parses items as long as a comma follows.
func (p *parser) separated(item func() error) error {
	for {
		if err := item(); err != nil {
			return err
		}
		if more, err := p.acceptOp(","); err != nil || !more {
			return err
		}
	}
}

func (p *parser) wantOp(op string) error {
	if ok, err := p.acceptOp(op); ok || err != nil {
		return err
	}
	return p.unexpected(op)
}

func (p *parser) wantWord(word string) error {
	if ok, err := p.acceptWord(word); ok || err != nil {
		return err
	}
	return p.unexpected(word)
}

// binary returns the operator at the current token and its precedence, 0 if there is none.
func (p *parser) binary() (op Op, precedence int) {
	switch p.tok.kind {
	case tokWord:
		switch strings.ToUpper(p.tok.value) {
		case "AND":
			return OpAnd, precAnd
		case "OR":
			return OpOr, precOr
		case "IS":
			return "IS", precIs
		case "LIKE", "IN", "WITHIN", "BETWEEN", "NOT":
			return opTest, precOrder
		}
	case tokOp:
		switch p.tok.value {
		case "=", "==":
			return OpEqual, precEqual
		case "!=", "<>":
			return OpNotEqual, precEqual
		case "<", "<=", ">", ">=":
			return Op(p.tok.value), precOrder
		case "||":
			return opConcat, precConcat
		case "+", "-":
			return Op(p.tok.value), precAdd
		case "*", "/", "%":
			return Op(p.tok.value), precMultiply
		}
	}
	return "", 0
}

// opTest stands for [NOT] LIKE, IN, WITHIN and BETWEEN, opConcat for ||.
const (
	opTest   Op = "LIKE, IN or BETWEEN"
	opConcat Op = "||"
)

// expression parses an operand and the operators with a higher precedence than above (Pratt).
func (p *parser) expression(above int) (Expr, error) {
	if p.operators++; p.operators > MaxNesting {
		return nil, p.fail(p.tok, "operators are nested deeper than %d levels", MaxNesting)
	}
	defer func() { p.operators-- }()
	return p.operation(above)
}

func (p *parser) operation(above int) (Expr, error) {
	left, err := p.prefix()
	if err != nil {
		return nil, err
	}
	for {
		op, precedence := p.binary()
		if precedence <= above {
			return left, nil
		}
		at := p.tok
		if op == opTest {
			if left, err = p.test(left); err != nil {
				return nil, err
			}
		} else if left, err = p.binaryRest(op, precedence, left); err != nil {
			return nil, err
		}
		if precedence != precEqual && precedence != precOrder {
			continue
		}
		if _, next := p.binary(); next == precedence {
			return nil, p.fail(p.tok, "comparisons do not chain; join them with AND, or put the one at column %d in parentheses",
				errorAt(p.lex.text, at.pos, false, "").Column)
		}
	}
}

// binaryRest parses what follows the left operand of an operator.
func (p *parser) binaryRest(op Op, precedence int, left Expr) (Expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if op == "IS" {
		return p.is(left)
	}
	right, err := p.expression(precedence)
	if err != nil {
		return nil, err
	}
	switch precedence {
	case precOr, precAnd:
		return logic(op, left, right), nil
	case precConcat:
		return concat(left, right), nil
	case precAdd, precMultiply:
		return &Arith{Op: op, L: left, R: right}, nil
	}
	return &Compare{Op: op, L: left, R: right}, nil
}

// concat joins operands as logic does.
func concat(left, right Expr) Expr {
	joined := &Concat{}
	for _, x := range []Expr{left, right} {
		if c, ok := x.(*Concat); ok {
			joined.Operands = append(joined.Operands, c.Operands...)
		} else {
			joined.Operands = append(joined.Operands, x)
		}
	}
	return joined
}

// logic joins operands; operands joined by the same operator are merged.
func logic(op Op, left, right Expr) Expr {
	joined, ok := left.(*Logic)
	if !ok || joined.Op != op {
		joined = &Logic{Op: op, Operands: []Expr{left}}
	}
	if r, ok := right.(*Logic); ok && r.Op == op {
		joined.Operands = append(joined.Operands, r.Operands...)
	} else {
		joined.Operands = append(joined.Operands, right)
	}
	return joined
}

// is parses what follows IS.
func (p *parser) is(x Expr) (Expr, error) {
	not, err := p.acceptWord("NOT")
	if err != nil {
		return nil, err
	}
	for _, c := range [...]struct {
		word string
		kind collate.Kind
		flip bool
	}{{"MISSING", collate.Missing, false}, {"NULL", collate.Null, false}, {"VALUED", collate.True, false},
		{"KNOWN", collate.True, false}, {"UNKNOWN", collate.True, true}} {
		if ok, err := p.acceptWord(c.word); err != nil {
			return nil, err
		} else if ok {
			return &Is{X: x, Not: not != c.flip, What: c.kind}, nil
		}
	}
	return nil, p.unexpected("MISSING, NULL or VALUED after IS")
}

// prefix parses NOT, a sign, or a primary.
func (p *parser) prefix() (Expr, error) {
	if ok, err := p.acceptWord("NOT"); err != nil {
		return nil, err
	} else if ok {
		x, err := p.expression(precNot - 1)
		if err != nil {
			return nil, err
		}
		return &Not{X: x}, nil
	}
	if ok, err := p.acceptOp("-"); err != nil {
		return nil, err
	} else if ok {
		x, err := p.expression(precMinus - 1)
		if err != nil {
			return nil, err
		}
		return negate(x), nil
	}
	if ok, err := p.acceptWord("EXISTS"); err != nil {
		return nil, err
	} else if ok {
		x, err := p.expression(precMinus)
		if err != nil {
			return nil, err
		}
		return &Exists{X: x}, nil
	}
	return p.primary()
}

// negate folds the sign into a number.
func negate(x Expr) Expr {
	l, ok := x.(*Literal)
	if !ok || l.Kind != collate.Number {
		return &Minus{X: x}
	}
	if digits, ok := strings.CutPrefix(l.Text, "-"); ok {
		return &Literal{Kind: collate.Number, Text: digits}
	}
	return &Literal{Kind: collate.Number, Text: "-" + l.Text}
}

// primary parses a literal, a path, a function, a construct, or parentheses, and the path into it.
func (p *parser) primary() (Expr, error) {
	tok := p.tok
	switch tok.kind {
	case tokString, tokNumber:
		kind := collate.String
		if tok.kind == tokNumber {
			kind = collate.Number
		}
		return &Literal{Kind: kind, Text: tok.value}, p.advance()
	case tokQuoted:
		if err := p.advance(); err != nil {
			return nil, err
		}
		return p.path(tok)
	case tokWord:
		return p.word(tok)
	case tokOp:
		return p.parenthesis(tok)
	}
	return nil, p.unexpected("an expression")
}

func (p *parser) parenthesis(tok token) (Expr, error) {
	switch tok.value {
	case "(":
		if err := p.advance(); err != nil {
			return nil, err
		}
		if p.parentheses++; p.parentheses > MaxNesting {
			return nil, p.fail(tok, "parentheses are nested deeper than %d levels", MaxNesting)
		}
		x, err := p.operation(0)
		p.parentheses--
		if err != nil {
			return nil, err
		}
		if err := p.wantOp(")"); err != nil {
			return nil, err
		}
		return p.into(x)
	case "[":
		return p.array()
	case "{":
		return p.object()
	case "+":
		return nil, p.fail(tok, "expected an expression, found +; write a positive number without a sign")
	case ".":
		return nil, p.fail(tok, "expected an expression, found .; a path begins with a name, a number with a digit")
	}
	return nil, p.unexpected("an expression")
}

// word parses what begins with a bare word: a literal, a construct, META().id, a call or a path.
func (p *parser) word(tok token) (Expr, error) {
	for _, kind := range [...]collate.Kind{collate.Missing, collate.Null, collate.False, collate.True} {
		if strings.EqualFold(tok.value, kind.String()) {
			return &Literal{Kind: kind}, p.advance()
		}
	}
	if x, err := p.construct(tok); x != nil || err != nil {
		return x, err
	}
	if isReserved(tok.value) {
		return nil, p.fail(tok, "expected an expression, found the reserved word %s; a name that is a reserved word must "+
			"be written in backticks: `%s`",
			strings.ToUpper(tok.value), tok.value)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if !p.isOp("(") {
		return p.path(tok)
	}
	if strings.EqualFold(tok.value, "META") {
		return p.meta()
	}
	return p.call(tok)
}

// construct parses the construct that begins with a word; it returns nil without an error if the word begins none
// here.
func (p *parser) construct(tok token) (Expr, error) {
	switch word := strings.ToUpper(tok.value); word {
	case "SELF":
		return p.self()
	case "CASE":
		return p.caseOf()
	case "ANY", "EVERY":
		return p.satisfies(tok)
	case "ARRAY", "FIRST", "OBJECT":
		if word == "ARRAY" || p.followedByExpression() {
			return p.comprehension(tok)
		}
	case "SOME":
		if p.followedByName() || p.followedBy("AND", "EVERY") {
			return p.satisfies(tok)
		}
	case "DISTINCT", "ALL":
		return nil, p.fail(tok, "%s is allowed only before a whole key expression, or before the whole body of its ARRAY "+
			"… FOR",
			word)
	case "SELECT":
		return nil, p.unsupported(tok, "SELECT is not supported: a key must depend on the document alone")
	}
	return nil, nil
}

// meta parses ().id after META.
func (p *parser) meta() (Expr, error) {
	if err := p.wantOp("("); err != nil {
		return nil, err
	}
	if !p.isOp(")") {
		return nil, p.unsupported(p.tok, "META takes no argument here: write META().id")
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if err := p.wantOp("."); err != nil {
		return nil, err
	}
	if !p.tok.isNamed() {
		return nil, p.unexpected("id after META().")
	}
	var x Expr
	switch p.tok.value {
	case "id":
		x = &DocID{}
	case "cas", "expiration", "flags":
		x = &Meta{Field: p.tok.value}
	case "xattrs":
		return p.xattr()
	default:
		return nil, p.unsupported(p.tok, "META().%s is not known; known are META().id, .cas, .expiration, .flags and "+
			".xattrs.name", p.tok.value)
	}
	field := p.tok.value
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.isOp(".") || p.isOp("[") {
		return nil, p.fail(p.tok, "META().%s is a scalar and has no members or elements", field)
	}
	return x, nil
}

// xattr parses the name of an extended attribute, and the path into it.
func (p *parser) xattr() (Expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if !p.isOp(".") {
		return nil, p.fail(p.tok, "META().xattrs has no value of its own: name the attribute, META().xattrs.name")
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if !p.tok.isNamed() {
		return nil, p.unexpected("the name of an attribute after META().xattrs.")
	}
	x := &Xattr{Name: p.tok.value}
	if err := p.advance(); err != nil {
		return nil, err
	}
	return p.into(x)
}

// path parses the steps after its first name, which may be a variable's.
func (p *parser) path(first token) (Expr, error) {
	if slices.Contains(p.scope, first.value) {
		return p.into(&Var{Name: first.value})
	}
	return p.into(&Path{Steps: []Step{{Name: first.value}}})
}

// into parses the steps of a path into x, if there are any.
func (p *parser) into(x Expr) (Expr, error) {
	var steps []Step
	for taken := pathSteps(x); ; taken++ { // steps in parentheses are joined with those that follow
		if taken > MaxPathSteps {
			return nil, p.fail(p.tok, "the path has more than %d steps", MaxPathSteps)
		}
		var err error
		switch {
		case p.isOp("."):
			x, steps, err = p.memberStep(x, steps)
		case p.isOp("["):
			x, steps, err = p.elementStep(x, steps)
		default:
			return navigate(x, steps), nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// memberStep parses .name or .[expression]: it adds a step, or returns a new x that includes all before.
func (p *parser) memberStep(x Expr, steps []Step) (Expr, []Step, error) {
	if err := p.advance(); err != nil {
		return nil, nil, err
	}
	if p.isOp("[") {
		x, err := p.computedStep(navigate(x, steps))
		return x, nil, err
	}
	if !p.tok.isNamed() {
		return nil, nil, p.unexpected("a name after the point")
	}
	steps = append(steps, Step{Name: p.tok.value})
	return x, steps, p.advance()
}

// elementStep parses [*], [number], [expression] or [from:to], like memberStep.
func (p *parser) elementStep(x Expr, steps []Step) (Expr, []Step, error) {
	if err := p.advance(); err != nil {
		return nil, nil, err
	}
	if p.isOp("*") {
		x, err := p.star(navigate(x, steps))
		return x, nil, err
	}
	next, step, err := p.element(x, steps)
	if next != nil || err != nil {
		return next, nil, err
	}
	return x, append(steps, step), nil
}

// pathSteps returns the number of consecutive steps at the end of x.
func pathSteps(x Expr) int {
	switch x := x.(type) {
	case *Path:
		return len(x.Steps)
	case *Nav:
		return len(x.Steps) + pathSteps(x.X)
	case *At:
		return 1 + pathSteps(x.X)
	case *Slice:
		return 1 + pathSteps(x.X)
	case *Call:
		if x.Star {
			return 1 + pathSteps(x.Args[0])
		}
	}
	return 0
}

// navigate returns x with further steps.
func navigate(x Expr, steps []Step) Expr {
	if len(steps) == 0 {
		return x
	}
	switch x := x.(type) {
	case *Path:
		return &Path{Steps: append(slices.Clip(x.Steps), steps...)}
	case *Nav:
		return &Nav{X: x.X, Steps: append(slices.Clip(x.Steps), steps...)}
	}
	return &Nav{X: x, Steps: steps}
}

// element parses n] after the bracket: a constant is a step; an expression or a slice is a node of its own.
func (p *parser) element(x Expr, steps []Step) (next Expr, step Step, err error) {
	at := p.tok
	index, err := p.bracketed()
	if err != nil {
		return nil, step, err
	}
	if p.isOp(":") {
		next, err = p.slice(navigate(x, steps), index)
		return next, step, err
	}
	if err := p.wantOp("]"); err != nil {
		return nil, step, err
	}
	l, ok := index.(*Literal)
	if !ok {
		return &At{X: navigate(x, steps), Index: index}, step, nil
	}
	n, err := strconv.ParseFloat(l.Text, 64)
	if l.Kind != collate.Number || err != nil || n != math.Trunc(n) || math.Abs(n) > MaxElement {
		return nil, step, p.fail(at, "%s is not a position in an array: expected an integer up to %d", index, MaxElement)
	}
	return nil, Step{Index: int(n), Element: true}, nil
}

// bracketed parses an expression within brackets.
func (p *parser) bracketed() (Expr, error) {
	return p.deeper(func() (Expr, error) { return p.expression(0) })
}

// slice parses :[high]] after the low end of a slice.
func (p *parser) slice(x, low Expr) (Expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	s := &Slice{X: x, Low: low}
	if !p.isOp("]") {
		var err error
		if s.High, err = p.bracketed(); err != nil {
			return nil, err
		}
	}
	return s, p.wantOp("]")
}

// computedStep parses [name] after a point.
func (p *parser) computedStep(x Expr) (Expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	name, err := p.bracketed()
	if err != nil {
		return nil, err
	}
	return &At{X: x, Index: name, Member: true}, p.wantOp("]")
}

// self parses the word for the whole document, and the path into it.
func (p *parser) self() (Expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.isOp("(") { // SELF()
		if err := p.advance(); err != nil {
			return nil, err
		}
		if err := p.wantOp(")"); err != nil {
			return nil, err
		}
	}
	return p.into(&Self{})
}
