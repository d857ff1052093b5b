package expression

import (
	"strconv"
	"strings"

	"tidemark/collate"
)

const (
	// MaxTextBytes limits a text of one or more statements.
	MaxTextBytes = 1 << 20
	// MaxStatementBytes limits one statement, and one expression.
	MaxStatementBytes = 64 << 10
	// MaxNesting limits how deep operators may be nested, and how deep parentheses.
	MaxNesting = 64
	// MaxPathSteps limits the steps of a path.
	MaxPathSteps = 64
	// MaxElement limits the places in arrays that a path may name, from either end.
	MaxElement = 1 << 20
)

// ParseExpression reads one expression. The error is a *SyntaxError.
func ParseExpression(text string) (Expr, error) {
	p, err := newParser(text)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxStatementBytes {
		return nil, p.lex.fail(MaxStatementBytes, "the expression is longer than %d bytes", MaxStatementBytes)
	}
	x, err := p.expression(0)
	if err != nil {
		return nil, err
	}
	if p.tok.kind != tokEnd {
		return nil, p.unexpected("an operator or the end")
	}
	return x, nil
}

// parser holds the token that is looked at. Errors are returned, never thrown.
type parser struct {
	lex         lexer
	tok         token
	operators   int // how deep operators are nested
	parentheses int // and parentheses; apart, so that the canonical text of what was read can be read again
}

// newParser looks at the first token. It returns plain error so that no typed nil can be mistaken for one.
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

// unexpected is the error for a token that cannot stand here.
func (p *parser) unexpected(wanted string) error {
	if err := p.futureOperator(); err != nil {
		return err
	}
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

// maxShown is how many bytes of a token a message repeats.
const maxShown = 40

// isOp and isWord look at the current token.
func (p *parser) isOp(op string) bool { return p.tok.kind == tokOp && p.tok.value == op }

func (p *parser) isWord(word string) bool {
	return p.tok.kind == tokWord && strings.EqualFold(p.tok.value, word)
}

// acceptOp and acceptWord pass the current token if it is the one.
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

// binary gives the operator at the current token and how tightly it binds, 0 if there is none.
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
		}
	case tokOp:
		switch p.tok.value {
		case "=", "==":
			return OpEqual, precEqual
		case "!=", "<>":
			return OpNotEqual, precEqual
		case "<", "<=", ">", ">=":
			return Op(p.tok.value), precOrder
		}
	}
	return "", 0
}

// expression reads an operand together with the operators that bind more tightly than above (Pratt).
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
		if err := p.advance(); err != nil {
			return nil, err
		}
		if op == "IS" {
			if left, err = p.is(left); err != nil {
				return nil, err
			}
			continue
		}
		right, err := p.expression(precedence)
		if err != nil {
			return nil, err
		}
		if op == OpAnd || op == OpOr {
			left = logic(op, left, right)
			continue
		}
		left = &Compare{Op: op, L: left, R: right}
		if _, next := p.binary(); next == precedence {
			return nil, p.fail(p.tok, "comparisons do not chain; join them with AND, or put the one at column %d in parentheses",
				errorAt(p.lex.text, at.pos, false, "").Column)
		}
	}
}

// logic joins operands; what is already joined by the same operator becomes part of it.
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

// is reads what follows IS.
func (p *parser) is(x Expr) (Expr, error) {
	not, err := p.acceptWord("NOT")
	if err != nil {
		return nil, err
	}
	for _, c := range [...]struct {
		word string
		kind collate.Kind
		flip bool
	}{{"MISSING", collate.Missing, false}, {"NULL", collate.Null, false}, {"VALUED", collate.True, false}, {"KNOWN", collate.True, false}, {"UNKNOWN", collate.True, true}} {
		if ok, err := p.acceptWord(c.word); err != nil {
			return nil, err
		} else if ok {
			return &Is{X: x, Not: not != c.flip, What: c.kind}, nil
		}
	}
	return nil, p.unexpected("MISSING, NULL or VALUED after IS")
}

// prefix reads NOT, a sign, or a primary.
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

// primary reads a literal, a path, META().id, or parentheses.
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
		if p.isOp(".") || p.isOp("[") {
			return nil, p.unsupported(p.tok, "a path into an expression in parentheses is not supported; a path begins with the name of a member")
		}
		return x, nil
	case "[", "{":
		return nil, p.unsupported(tok, "arrays and objects as literals are not supported yet")
	case "+":
		return nil, p.fail(tok, "expected an expression, found +; a positive number has no sign")
	case ".":
		return nil, p.fail(tok, "expected an expression, found .; a path begins with a name, a number with a digit")
	}
	return nil, p.unexpected("an expression")
}

// word reads what begins with a bare word: a literal, META().id or a path.
func (p *parser) word(tok token) (Expr, error) {
	for _, kind := range [...]collate.Kind{collate.Missing, collate.Null, collate.False, collate.True} {
		if strings.EqualFold(tok.value, kind.String()) {
			return &Literal{Kind: kind}, p.advance()
		}
	}
	if err := p.futureWord(tok); err != nil {
		return nil, err
	}
	if isReserved(tok.value) {
		return nil, p.fail(tok, "expected an expression, found the reserved word %s; a name that is one is written in backticks: `%s`",
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
	return nil, p.function(tok)
}

// meta reads ().id after META.
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
	if p.tok.kind != tokWord && p.tok.kind != tokQuoted {
		return nil, p.unexpected("id after META().")
	}
	if p.tok.value != "id" {
		return nil, p.unsupported(p.tok, "META().%s is not supported: only META().id is", p.tok.value)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.isOp(".") || p.isOp("[") {
		return nil, p.fail(p.tok, "META().id is a string and has no members or elements")
	}
	return &DocID{}, nil
}

// path reads the steps after its first name.
func (p *parser) path(first token) (Expr, error) {
	path := &Path{Steps: []Step{{Name: first.value}}}
	for {
		at := p.tok
		switch {
		case p.isOp("."):
			if err := p.advance(); err != nil {
				return nil, err
			}
			if p.tok.kind != tokWord && p.tok.kind != tokQuoted {
				return nil, p.unexpected("a name after the point")
			}
			path.Steps = append(path.Steps, Step{Name: p.tok.value})
			if err := p.advance(); err != nil {
				return nil, err
			}
		case p.isOp("["):
			step, err := p.element()
			if err != nil {
				return nil, err
			}
			path.Steps = append(path.Steps, step)
		default:
			return path, nil
		}
		if len(path.Steps) > MaxPathSteps {
			return nil, p.fail(at, "the path has more than %d steps", MaxPathSteps)
		}
	}
}

// element reads [n].
func (p *parser) element() (step Step, err error) {
	if err := p.advance(); err != nil {
		return step, err
	}
	if p.isOp("*") {
		return step, p.unsupported(p.tok, "array keys ([*]) are not supported yet")
	}
	negative, err := p.acceptOp("-")
	if err != nil {
		return step, err
	}
	if p.tok.kind != tokNumber {
		return step, p.unexpected("the number of an element")
	}
	n, err := strconv.Atoi(p.tok.value)
	if err != nil || n > MaxElement {
		return step, p.fail(p.tok, "%s is no place in an array: expected an integer up to %d", p.describe(p.tok), MaxElement)
	}
	if negative {
		n = -n
	}
	if err := p.advance(); err != nil {
		return step, err
	}
	return Step{Index: n, Element: true}, p.wantOp("]")
}

// futureWord refuses the constructs of the language that begin with a word and cannot be compiled yet.
func (p *parser) futureWord(tok token) error {
	switch strings.ToUpper(tok.value) {
	case "DISTINCT", "ALL", "ARRAY":
		return p.unsupported(tok, "array keys (%s …) are not supported yet", strings.ToUpper(tok.value))
	case "CASE", "ANY", "EVERY", "EXISTS", "SELECT":
		return p.unsupported(tok, "%s is not supported", strings.ToUpper(tok.value))
	}
	return nil
}

// futureOperator refuses the operators of the language that cannot be compiled yet, by name.
func (p *parser) futureOperator() error {
	switch p.tok.kind {
	case tokOp:
		switch p.tok.value {
		case "+", "-", "*", "/", "%", "||":
			return p.unsupported(p.tok, "the operator %s is not supported yet", p.tok.value)
		}
	case tokWord:
		switch word := strings.ToUpper(p.tok.value); word {
		case "LIKE", "IN", "BETWEEN", "WITHIN":
			return p.unsupported(p.tok, "%s is not supported yet", word)
		case "NOT":
			return p.unsupported(p.tok, "NOT LIKE, NOT IN and NOT BETWEEN are not supported yet; NOT alone stands before an expression")
		}
	}
	return nil
}

// function refuses every function, with the reason.
func (p *parser) function(tok token) error {
	name := strings.ToUpper(tok.value)
	switch {
	case strings.HasPrefix(name, "NOW_") || strings.HasPrefix(name, "CLOCK_"):
		name = "NOW"
	}
	switch name {
	case "NOW", "CLOCK", "RANDOM", "UUID", "CURRENT_USERS", "CURRENT_USER":
		return p.fail(tok, "%s() cannot be indexed: a key must depend on the document alone", strings.ToUpper(tok.value))
	case "HASH", "RANGE":
		return p.fail(tok, "%s is no function; it stands after PARTITION BY", name)
	}
	return p.unsupported(tok, "the function %s() is not known; functions other than META() are not supported yet", strings.ToUpper(tok.value))
}
