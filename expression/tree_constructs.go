package expression

import (
	"strings"

	"tidemark/collate"
)

// More operators, as they are printed.
const (
	OpAdd      Op = "+"
	OpSubtract Op = "-"
	OpMultiply Op = "*"
	OpDivide   Op = "/"
	OpModulo   Op = "%"
)

// Arith is L op R of numbers.
type Arith struct {
	Op   Op
	L, R Expr
}

// Concat is X || Y || … of strings.
type Concat struct{ Operands []Expr }

// Like is X [NOT] LIKE Pattern [ESCAPE Escape]. Escape is nil for the backslash.
type Like struct {
	X, Pattern, Escape Expr
	Not                bool
}

// In is X [NOT] IN List.
type In struct {
	X, List Expr
	Not     bool
}

// Between is X [NOT] BETWEEN Low AND High, both included.
type Between struct {
	X, Low, High Expr
	Not          bool
}

// When is one branch of a Case.
type When struct{ If, Then Expr }

// Case is CASE [Operand] WHEN … THEN … [ELSE …] END; without Operand the conditions are predicates.
type Case struct {
	Operand Expr // nil: searched
	Whens   []When
	Else    Expr // nil: NULL
}

// Array is an array of expressions.
type Array struct{ Items []Expr }

// Member is one member of an Object, with a fixed or a computed name.
type Member struct {
	Name     string
	Computed Expr // nil: Name
	Value    Expr
}

// Object is an object of expressions. MISSING members are left out.
type Object struct{ Members []Member }

// Self is the whole document.
type Self struct{}

// At is X[Index] or, if Member is set, X.[Index], with a computed position or name.
type At struct {
	X, Index Expr
	Member   bool
}

// Slice is X[Low:High] or, without High, X[Low:].
type Slice struct{ X, Low, High Expr }

// Within is X [NOT] WITHIN Whole: whether a value occurs anywhere in an array or object.
type Within struct {
	X, Whole Expr
	Not      bool
}

// Nav is a path into the value of an expression that is not a path itself.
type Nav struct {
	X     Expr
	Steps []Step
}

// Var is the variable of this name of an enclosing Each.
type Var struct{ Name string }

// Meta is META().Field other than id: cas, expiration or flags.
type Meta struct{ Field string }

// Xattr is META().xattrs.Name: an extended attribute of the document.
type Xattr struct{ Name string }

// Call is a function of the table; Name is its canonical name.
type Call struct {
	Name string
	Args []Expr
	Star bool // written x[*]
	fn   *Function
}

// EachKind is the kind of result of an Each.
type EachKind string

// The kinds of Each.
const (
	EachAny      EachKind = "ANY"           // whether Body holds for an element
	EachEvery    EachKind = "EVERY"         // whether Body holds for all elements; TRUE if there are none
	EachAnyEvery EachKind = "ANY AND EVERY" // whether Body holds for all, and there is an element
	EachArray    EachKind = "ARRAY"         // the array of the Bodies
	EachFirst    EachKind = "FIRST"         // the first Body
	EachObject   EachKind = "OBJECT"        // the object of the Bodies, with the names from Name
)

// Binding is [Name:]Var IN Over, or with Within set, WITHIN: Var is each element in turn, Name its position or, in an
// object, its name.
type Binding struct {
	Name, Var string
	Over      Expr
	Within    bool // everything in it, at any depth
}

// Each iterates over arrays in parallel, up to the end of the shortest: ANY Bindings SATISFIES Body END, or ARRAY
// Body FOR Bindings [WHEN When] END.
type Each struct {
	Kind     EachKind
	Bindings []Binding
	Name     Expr // of EachObject, else nil
	Body     Expr
	When     Expr // nil: all
}

// plain reports whether an Each iterates over the elements of one array.
func (x *Each) plain() bool {
	return len(x.Bindings) == 1 && x.Bindings[0].Name == "" && !x.Bindings[0].Within
}

// Exists is EXISTS X: whether an array has an element.
type Exists struct{ X Expr }

// ArrayKey is a key component that makes an entry for each element of an array: ALL X, DISTINCT X.
type ArrayKey struct {
	Distinct bool
	X        Expr
}

// MissingKey is X INCLUDE MISSING: a leading key component for which documents without it are indexed, too.
type MissingKey struct{ X Expr }

func (x *Arith) precedence() int {
	if x.Op == OpAdd || x.Op == OpSubtract {
		return precAdd
	}
	return precMultiply
}
func (*Concat) precedence() int     { return precConcat }
func (*Like) precedence() int       { return precOrder }
func (*In) precedence() int         { return precOrder }
func (*Between) precedence() int    { return precOrder }
func (*Case) precedence() int       { return precPrimary }
func (*Array) precedence() int      { return precPrimary }
func (*Object) precedence() int     { return precPrimary }
func (*Nav) precedence() int        { return precPrimary }
func (*Var) precedence() int        { return precPrimary }
func (*Meta) precedence() int       { return precPrimary }
func (*Xattr) precedence() int      { return precPrimary }
func (*Call) precedence() int       { return precPrimary }
func (*Each) precedence() int       { return precPrimary }
func (*Exists) precedence() int     { return precMinus }
func (*Self) precedence() int       { return precPrimary }
func (*At) precedence() int         { return precPrimary }
func (*Slice) precedence() int      { return precPrimary }
func (*Within) precedence() int     { return precOrder }
func (*ArrayKey) precedence() int   { return 0 }
func (*MissingKey) precedence() int { return 0 }

// String returns the canonical text.
func (x *Arith) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Concat) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Like) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *In) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Between) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Case) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Array) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Object) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Nav) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Var) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Meta) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Xattr) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Call) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Each) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Exists) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *ArrayKey) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *MissingKey) String() string { return string(x.appendTo(nil)) }

func (x *MissingKey) appendTo(dst []byte) []byte { return append(x.X.appendTo(dst), includeMissing...) }

// includeMissing is the text after a key that may be MISSING.
const includeMissing = " INCLUDE MISSING"

// bareKey returns a key without INCLUDE MISSING, and reports whether it had it.
func bareKey(x Expr) (plain Expr, missing bool) {
	if key, ok := x.(*MissingKey); ok {
		return key.X, true
	}
	return x, false
}

// String returns the canonical text.
func (x *Self) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *At) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Slice) String() string { return string(x.appendTo(nil)) }

// String returns the canonical text.
func (x *Within) String() string { return string(x.appendTo(nil)) }

func (*Self) appendTo(dst []byte) []byte { return append(dst, "self"...) }

func (x *At) appendTo(dst []byte) []byte {
	dst = appendInto(dst, x.X)
	if x.Member {
		dst = append(dst, '.')
	}
	return append(x.Index.appendTo(append(dst, '[')), ']')
}

func (x *Slice) appendTo(dst []byte) []byte {
	dst = append(x.Low.appendTo(append(appendInto(dst, x.X), '[')), ':')
	if x.High != nil {
		dst = x.High.appendTo(dst)
	}
	return append(dst, ']')
}

func (x *Within) appendTo(dst []byte) []byte {
	dst = appendOp(appendNot(appendOperand(dst, x.X, precIs), x.Not), "WITHIN")
	return appendOperand(dst, x.Whole, precIs)
}

// appendInto prints an expression that is followed by a path.
func appendInto(dst []byte, x Expr) []byte {
	switch x.(type) {
	case *Path, *Nav, *At, *Slice, *Self, *Array, *Object, *Case, *Call, *Var, *Xattr:
		return x.appendTo(dst)
	}
	return append(x.appendTo(append(dst, '(')), ')')
}

func appendOp(dst []byte, op string) []byte {
	return append(append(append(dst, ' '), op...), ' ')
}

func appendNot(dst []byte, not bool) []byte {
	if not {
		return append(dst, " NOT"...)
	}
	return dst
}

func (x *Arith) appendTo(dst []byte) []byte {
	dst = appendOp(appendOperand(dst, x.L, x.precedence()), string(x.Op))
	return appendOperand(dst, x.R, x.precedence()+1)
}

func (x *Concat) appendTo(dst []byte) []byte {
	for i, o := range x.Operands {
		if i > 0 {
			dst = appendOp(dst, "||")
		}
		dst = appendOperand(dst, o, precConcat+1)
	}
	return dst
}

func (x *Like) appendTo(dst []byte) []byte {
	dst = appendOp(appendNot(appendOperand(dst, x.X, precIs), x.Not), "LIKE")
	dst = appendOperand(dst, x.Pattern, precIs)
	if x.Escape != nil {
		dst = appendOperand(appendOp(dst, "ESCAPE"), x.Escape, precIs)
	}
	return dst
}

func (x *In) appendTo(dst []byte) []byte {
	dst = appendOp(appendNot(appendOperand(dst, x.X, precIs), x.Not), "IN")
	return appendOperand(dst, x.List, precIs)
}

func (x *Between) appendTo(dst []byte) []byte {
	dst = appendOp(appendNot(appendOperand(dst, x.X, precIs), x.Not), "BETWEEN")
	dst = appendOp(appendOperand(dst, x.Low, precIs), "AND")
	return appendOperand(dst, x.High, precIs)
}

func (x *Case) appendTo(dst []byte) []byte {
	dst = append(dst, "CASE"...)
	if x.Operand != nil {
		dst = x.Operand.appendTo(append(dst, ' '))
	}
	for _, w := range x.Whens {
		dst = w.If.appendTo(append(dst, " WHEN "...))
		dst = w.Then.appendTo(append(dst, " THEN "...))
	}
	if x.Else != nil {
		dst = x.Else.appendTo(append(dst, " ELSE "...))
	}
	return append(dst, " END"...)
}

func (x *Array) appendTo(dst []byte) []byte {
	return append(appendList(append(dst, '['), x.Items), ']')
}

func appendList(dst []byte, list []Expr) []byte {
	for i, o := range list {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = o.appendTo(dst)
	}
	return dst
}

func (x *Object) appendTo(dst []byte) []byte {
	dst = append(dst, '{')
	for i, m := range x.Members {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if m.Computed != nil {
			dst = m.Computed.appendTo(dst)
		} else {
			dst = collate.AppendQuoted(dst, []byte(m.Name))
		}
		dst = append(dst, ": "...)
		dst = m.Value.appendTo(dst)
	}
	return append(dst, '}')
}

func (x *Nav) appendTo(dst []byte) []byte {
	return appendSteps(appendInto(dst, x.X), x.Steps)
}

func (x *Var) appendTo(dst []byte) []byte { return appendName(dst, x.Name) }

func (x *Xattr) appendTo(dst []byte) []byte {
	return appendName(append(dst, "META().xattrs."...), x.Name)
}

func (x *Meta) appendTo(dst []byte) []byte { return append(append(dst, "META()."...), x.Field...) }

func (x *Call) appendTo(dst []byte) []byte {
	if x.Star {
		return append(appendInto(dst, x.Args[0]), "[*]"...)
	}
	return append(appendList(append(append(dst, x.Name...), '('), x.Args), ')')
}

func (x *Each) appendTo(dst []byte) []byte {
	dst = append(append(dst, x.Kind...), ' ')
	if x.Kind == EachArray || x.Kind == EachFirst || x.Kind == EachObject {
		if x.Name != nil {
			dst = append(x.Name.appendTo(dst), ": "...)
		}
		dst = x.appendBindings(append(x.appendBody(dst), " FOR "...))
		if x.When != nil {
			dst = x.When.appendTo(append(dst, " WHEN "...))
		}
		return append(dst, " END"...)
	}
	dst = append(x.appendBindings(dst), " SATISFIES "...)
	return append(x.Body.appendTo(dst), " END"...)
}

func (x *Each) appendBindings(dst []byte) []byte {
	for i, b := range x.Bindings {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		if b.Name != "" {
			dst = append(appendName(dst, b.Name), ':')
		}
		dst = append(appendName(dst, b.Var), " IN "...)
		if b.Within {
			dst = append(dst[:len(dst)-len("IN ")], "WITHIN "...)
		}
		dst = b.Over.appendTo(dst)
	}
	return dst
}

// appendBody prints the part between ARRAY or FIRST and FOR. FIRST is also a name, so a sign, a bracket or NOT after
// it would be parsed as following that name.
func (x *Each) appendBody(dst []byte) []byte {
	start := len(dst)
	dst = x.Body.appendTo(dst)
	if _, nested := x.Body.(*ArrayKey); nested {
		body := string(dst[start:])
		return append(append(append(dst[:start], '('), body...), ')')
	}
	if body := string(dst[start:]); x.Kind == EachFirst && (body[0] == '-' || body[0] == '[' ||
		strings.HasPrefix(body, "NOT ")) {
		return append(append(append(dst[:start], '('), body...), ')')
	}
	return dst
}

func (x *Exists) appendTo(dst []byte) []byte {
	return appendOperand(append(dst, "EXISTS "...), x.X, precPrimary)
}

func (x *ArrayKey) appendTo(dst []byte) []byte {
	word := "ALL "
	if x.Distinct {
		word = "DISTINCT "
	}
	return x.X.appendTo(append(dst, word...))
}

func (*Self) operands() []Expr         { return nil }
func (*Var) operands() []Expr          { return nil }
func (*Meta) operands() []Expr         { return nil }
func (*Xattr) operands() []Expr        { return nil }
func (x *Arith) operands() []Expr      { return []Expr{x.L, x.R} }
func (x *Concat) operands() []Expr     { return x.Operands }
func (x *Like) operands() []Expr       { return present(x.X, x.Pattern, x.Escape) }
func (x *In) operands() []Expr         { return []Expr{x.X, x.List} }
func (x *Between) operands() []Expr    { return []Expr{x.X, x.Low, x.High} }
func (x *Array) operands() []Expr      { return x.Items }
func (x *Nav) operands() []Expr        { return []Expr{x.X} }
func (x *At) operands() []Expr         { return []Expr{x.X, x.Index} }
func (x *Slice) operands() []Expr      { return present(x.X, x.Low, x.High) }
func (x *Within) operands() []Expr     { return []Expr{x.X, x.Whole} }
func (x *Call) operands() []Expr       { return x.Args }
func (x *Exists) operands() []Expr     { return []Expr{x.X} }
func (x *ArrayKey) operands() []Expr   { return []Expr{x.X} }
func (x *MissingKey) operands() []Expr { return []Expr{x.X} }

func (x *Case) operands() []Expr {
	list := present(x.Operand, x.Else)
	for _, w := range x.Whens {
		list = append(list, w.If, w.Then)
	}
	return list
}

func (x *Object) operands() []Expr {
	var list []Expr
	for _, m := range x.Members {
		list = append(list, present(m.Computed, m.Value)...)
	}
	return list
}

func (x *Each) operands() []Expr {
	var list []Expr
	for _, b := range x.Bindings {
		list = append(list, b.Over)
	}
	return append(list, present(x.Name, x.Body, x.When)...)
}

func present(list ...Expr) []Expr {
	var some []Expr
	for _, x := range list {
		if x != nil {
			some = append(some, x)
		}
	}
	return some
}

// isName reports whether a word may be a variable's name.
func isName(word string) bool {
	return word != "" && !isReserved(word) && !strings.EqualFold(word, "META")
}

// isConstant reports whether an expression has the same value for every document.
func isConstant(x Expr) bool {
	switch x.(type) {
	case *Path, *DocID, *Meta, *Xattr, *Var, *Self:
		return false
	}
	for _, o := range x.operands() {
		if !isConstant(o) {
			return false
		}
	}
	return true
}

// Walk calls f for an expression and for all its subexpressions.
func Walk(x Expr, f func(Expr)) {
	f(x)
	for _, o := range x.operands() {
		Walk(o, f)
	}
}
