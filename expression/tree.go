package expression

import (
	"strconv"
	"strings"

	"tidemark/collate"
)

// Expr is a parsed expression. String returns the canonical text.
type Expr interface {
	String() string
	appendTo(dst []byte) []byte
	precedence() int
	// operands returns the direct subexpressions.
	operands() []Expr
	// compile returns the evaluator. Slots have been numbered before.
	compile(c *compiler) evaluator
}

// Precedences of operators, lowest first.
const (
	precOr = iota + 1
	precAnd
	precNot
	precEqual
	precOrder
	precIs
	precConcat
	precAdd
	precMultiply
	precMinus
	precPrimary
)

// Op is an operator of Compare or Logic.
type Op string

// The operators, as they are printed.
const (
	OpEqual        Op = "="
	OpNotEqual     Op = "!="
	OpLess         Op = "<"
	OpLessEqual    Op = "<="
	OpGreater      Op = ">"
	OpGreaterEqual Op = ">="
	OpAnd          Op = "AND"
	OpOr           Op = "OR"
)

// Literal is a constant: MISSING, NULL, FALSE, TRUE, a number with its JSON text, or a string with its decoded text.
type Literal struct {
	Kind collate.Kind
	Text string
}

// Step is one step of a path: to a member of an object, or to an element of an array (counted from its end if
// negative).
type Step struct {
	Name    string
	Index   int
	Element bool
}

// Path is a place in the document. Its first step is a member.
type Path struct{ Steps []Step }

// DocID is META().id.
type DocID struct{}

// Compare compares two values.
type Compare struct {
	Op   Op
	L, R Expr
}

// Logic is AND or OR of two or more operands.
type Logic struct {
	Op       Op
	Operands []Expr
}

// Not is NOT X.
type Not struct{ X Expr }

// Minus is -X.
type Minus struct{ X Expr }

// Is is X IS [NOT] What, where What is Missing, Null, or True for VALUED.
type Is struct {
	X    Expr
	Not  bool
	What collate.Kind
}

func (*Literal) precedence() int { return precPrimary }
func (*Path) precedence() int    { return precPrimary }
func (*DocID) precedence() int   { return precPrimary }
func (*Not) precedence() int     { return precNot }
func (*Minus) precedence() int   { return precMinus }
func (*Is) precedence() int      { return precIs }

func (x *Compare) precedence() int {
	if x.Op == OpEqual || x.Op == OpNotEqual {
		return precEqual
	}
	return precOrder
}

func (x *Logic) precedence() int {
	if x.Op == OpAnd {
		return precAnd
	}
	return precOr
}

func (*Literal) operands() []Expr   { return nil }
func (*Path) operands() []Expr      { return nil }
func (*DocID) operands() []Expr     { return nil }
func (x *Compare) operands() []Expr { return []Expr{x.L, x.R} }
func (x *Logic) operands() []Expr   { return x.Operands }
func (x *Not) operands() []Expr     { return []Expr{x.X} }
func (x *Minus) operands() []Expr   { return []Expr{x.X} }
func (x *Is) operands() []Expr      { return []Expr{x.X} }

// String returns the canonical text.
func (x *Literal) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Path) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *DocID) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Compare) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Logic) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Not) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Minus) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Is) String() string { return string(x.appendTo(nil)) }

// appendOperand prints x, in parentheses unless its precedence is at least wanted.
func appendOperand(dst []byte, x Expr, wanted int) []byte {
	if x.precedence() >= wanted {
		return x.appendTo(dst)
	}
	return append(x.appendTo(append(dst, '(')), ')')
}

func (x *Literal) appendTo(dst []byte) []byte {
	switch x.Kind {
	case collate.Number:
		return append(dst, x.Text...)
	case collate.String:
		return collate.AppendQuoted(dst, []byte(x.Text))
	}
	return append(dst, strings.ToUpper(x.Kind.String())...)
}

func (x *Path) appendTo(dst []byte) []byte {
	return appendSteps(appendName(dst, x.Steps[0].Name), x.Steps[1:])
}

func appendSteps(dst []byte, steps []Step) []byte {
	for _, s := range steps {
		if s.Element {
			dst = append(strconv.AppendInt(append(dst, '['), int64(s.Index), 10), ']')
			continue
		}
		dst = appendName(append(dst, '.'), s.Name)
	}
	return dst
}

func (*DocID) appendTo(dst []byte) []byte { return append(dst, "META().id"...) }

func (x *Compare) appendTo(dst []byte) []byte {
	// Comparisons do not chain, so an operand must have a higher precedence than any of them.
	dst = appendOperand(dst, x.L, precIs)
	dst = append(append(append(dst, ' '), x.Op...), ' ')
	return appendOperand(dst, x.R, precIs)
}

func (x *Logic) appendTo(dst []byte) []byte {
	for i, o := range x.Operands {
		if i > 0 {
			dst = append(append(append(dst, ' '), x.Op...), ' ')
		}
		dst = appendOperand(dst, o, x.precedence()+1)
	}
	return dst
}

func (x *Not) appendTo(dst []byte) []byte { return appendOperand(append(dst, "NOT "...), x.X, precNot) }

func (x *Minus) appendTo(dst []byte) []byte {
	return appendOperand(append(dst, '-'), x.X, precPrimary) // -(-x): two signs would begin a comment
}

func (x *Is) appendTo(dst []byte) []byte {
	dst = append(appendOperand(dst, x.X, precIs), " IS "...)
	if x.Not {
		dst = append(dst, "NOT "...)
	}
	if x.What == collate.True {
		return append(dst, "VALUED"...)
	}
	return append(dst, strings.ToUpper(x.What.String())...)
}

// appendName prints an identifier, in backticks if it needs them.
func appendName(dst []byte, name string) []byte {
	bare := name != "" && isWordStart(name[0]) && !isReserved(name)
	for i := 1; i < len(name) && bare; i++ {
		bare = isWordPart(name[i])
	}
	if bare {
		return append(dst, name...)
	}
	dst = append(dst, '`')
	dst = append(dst, strings.ReplaceAll(name, "`", "``")...)
	return append(dst, '`')
}
