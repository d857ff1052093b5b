package expression

import (
	"fmt"
	"slices"
	"strings"
)

// Family groups functions in the documentation.
type Family string

// The families.
const (
	FamilyString      Family = "String"
	FamilyNumber      Family = "Number"
	FamilyDate        Family = "Date"
	FamilyArray       Family = "Array"
	FamilyObject      Family = "Object"
	FamilyType        Family = "Type"
	FamilyConditional Family = "Conditional"
	FamilyEncoding    Family = "Encoding"
	FamilyBit         Family = "Bit"
)

// Function is one function of the language. Examples are executed by a test.
type Function struct {
	Name     string
	Aliases  []string
	Family   Family
	Params   string // as shown: "text, from [, length]"
	Min, Max int    // how many arguments
	About    string // one sentence, or two
	Example  Example
	// constant lists the arguments that must be string literals, so that an invalid one is refused at CREATE INDEX.
	constant []int
	// verify returns what is wrong with literal arguments, or "".
	verify func(args []Expr) string
	// newly is verify for new definitions only: stored definitions of a version that accepted the arguments keep their
	// results.
	newly func(args []Expr) string
	// prepare, for a function with constant arguments, makes the evaluation from them, or returns what is wrong with
	// them.
	prepare func(constants []string) (evaluation, error)
	eval    evaluation
	nulls   bool // it is called even if an argument is NULL; only MISSING propagates
	lenient bool // it is called even if an argument is MISSING or NULL; otherwise MISSING, else NULL, propagates
}

// Example is an expression over the document {"s": …} of docs/expressions.md and its value, as JSON text or MISSING.
type Example struct{ Expr, Value string }

// evaluation computes a function. The arguments are only valid until it returns.
type evaluation func(s *Scratch, a []value) value

// MaxArgs is the Max of functions that accept any number of arguments.
const MaxArgs = MaxList

// Functions returns all functions, by family and name.
func Functions() []*Function {
	var all []*Function
	for i := range functionTable {
		all = append(all, functionTable[i]...)
	}
	return all
}

// functionTable contains the functions by family.
var functionTable = [...][]*Function{stringFunctions, patternFunctions, numberFunctions, dateFunctions, arrayFunctions,
	objectFunctions, typeFunctions, conditionalFunctions, encodingFunctions, bitFunctions}

// functionIndex maps names and aliases to functions; it is read-only.
var functionIndex = indexFunctions()

func indexFunctions() map[string]*Function {
	m := map[string]*Function{}
	for _, f := range Functions() {
		m[f.Name] = f
		for _, a := range f.Aliases {
			m[a] = f
		}
	}
	return m
}

func functionNamed(name string) *Function { return functionIndex[name] }

// check returns what is wrong with the arguments, or "".
func (f *Function) check(args []Expr) string {
	if n := len(args); n < f.Min || n > f.Max {
		return fmt.Sprintf("%s takes %s, found %d: %s(%s)", f.Name, f.count(), n, f.Name, f.Params)
	}
	if f.verify != nil {
		return f.verify(args)
	}
	if f.prepare == nil {
		return ""
	}
	constants, wrong := f.constants(args)
	if wrong != "" {
		return wrong
	}
	if _, err := f.prepare(constants); err != nil {
		return fmt.Sprintf("%s: %v", f.Name, err)
	}
	return ""
}

// constants returns the arguments that must be string literals.
func (f *Function) constants(args []Expr) (list []string, wrong string) {
	for _, i := range f.constant {
		if i >= len(args) {
			break
		}
		l, ok := args[i].(*Literal)
		if !ok || l.Kind != kindString {
			return nil, fmt.Sprintf("argument %d of %s must be a string literal: %s(%s)", i+1, f.Name,
				f.Name, f.Params)
		}
		list = append(list, l.Text)
	}
	return list, ""
}

func (f *Function) count() string {
	switch {
	case f.Min == f.Max && f.Min == 1:
		return "1 argument"
	case f.Min == f.Max:
		return fmt.Sprintf("%d arguments", f.Min)
	case f.Max == MaxArgs:
		return fmt.Sprintf("at least %d arguments", f.Min)
	}
	return fmt.Sprintf("%d to %d arguments", f.Min, f.Max)
}

// closest returns the function whose name is most similar to an unknown one, or "".
func closest(name string) string {
	return nearest(name, FunctionNames())
}

// nearest returns the name that is most similar to a word, or "". If a third of the letters, or more than two,
// differ, it is not similar.
func nearest(word string, names []string) string {
	best, at := "", min(3, 1+len(word)/3)
	for _, n := range names {
		if d := distance(strings.ToUpper(word), strings.ToUpper(n), at); d < at {
			best, at = n, d
		}
	}
	return best
}

// distance returns the edit distance of a and b (insertions, deletions, replacements); limit if it is that or more.
func distance(a, b string, limit int) int {
	if d := len(a) - len(b); d >= limit || -d >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(limit, row[len(b)])
}

// compile returns the evaluator of a function call.
func (x *Call) compile(c *compiler) evaluator {
	f, fn := x.fn, x.fn.eval
	if f.prepare != nil {
		constants, _ := f.constants(x.Args) // the parser has checked both errors
		fn, _ = f.prepare(constants)
	}
	args := c.compileAll(x.Args)
	spreads := kindNull // kinds that make the result without a call; MISSING and NULL are the lowest kinds
	if f.nulls {
		spreads = kindMissing
	} else if f.lenient {
		spreads = 0
	}
	return func(s *Scratch) value {
		base := len(s.stack)
		defer func() { s.stack = s.stack[:base] }()
		worst, size := kindTrue, 0 // MISSING and NULL propagate
		for _, a := range args {
			v := a(s)
			if s.err != nil {
				return missing
			}
			worst = min(worst, v.kind)
			size += len(v.data)
			s.stack = append(s.stack, v)
		}
		if !s.spend(1 + size/stepBytes) {
			return missing
		}
		if worst <= spreads {
			return value{kind: worst}
		}
		return fn(s, s.stack[base:])
	}
}

func (c *compiler) compileAll(list []Expr) []evaluator {
	out := make([]evaluator, len(list))
	for i, x := range list {
		out[i] = x.compile(c)
	}
	return out
}

// FunctionNames returns the sorted names of all functions and aliases, for completion and messages.
func FunctionNames() []string {
	var names []string
	for _, f := range Functions() {
		names = append(names, f.Name)
		names = append(names, f.Aliases...)
	}
	for _, f := range operatorForms {
		names = append(append(names, f.Name), f.Aliases...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// String returns the family's name in lower case, which is its anchor in the documentation.
func (f Family) String() string { return strings.ToLower(string(f)) }
