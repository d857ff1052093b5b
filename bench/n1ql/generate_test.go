package n1ql

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"tidemark/expression"
)

// node is an expression, with its parts that can be evaluated by themselves.
type node struct {
	text string
	kids []*node
}

// join combines expressions; each %s of the form is one of them.
func join(form string, kids ...*node) *node {
	texts := make([]any, len(kids))
	for i, k := range kids {
		texts[i] = k.text
	}
	return &node{fmt.Sprintf(form, texts...), kids}
}

func leaf(text string) *node { return &node{text: text} }

// generator generates expressions and documents.
type generator struct {
	*rand.Rand
	functions []callable
	unordered []string // functions whose results have an order of their own there: their results are always sorted
}

// callable is a function, or an operator that is written as a function.
type callable struct {
	name     string
	names    []string // and its aliases
	params   []string
	min, max int
}

func newGenerator(seed uint64, rows []*difference) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
	for _, f := range expression.Functions() {
		g.functions = append(g.functions, callable{f.Name, append([]string{f.Name}, f.Aliases...), paramNames(f.Params),
			f.Min, f.Max})
	}
	for _, f := range expression.OperatorForms() {
		g.functions = append(g.functions, callable{f.Name, append([]string{f.Name}, f.Aliases...), paramNames(f.Params),
			f.Min, f.Max})
	}
	for _, row := range rows {
		if row.kind == kindOrder {
			g.unordered = append(g.unordered, row.names...)
		}
	}
	return g
}

// paramNames lists the parameters of "text, from [, length]".
func paramNames(params string) (names []string) {
	for _, p := range strings.FieldsFunc(params, func(r rune) bool { return strings.ContainsRune(`,[]"…`, r) }) {
		if p = strings.TrimSpace(p); p != "" {
			names = append(names, p)
		}
	}
	return names
}

func pick[T any](g *generator, list []T) T { return list[g.IntN(len(list))] }

// request generates an evaluation: an expression or an array key, on a document.
func (g *generator) request() (r request, x *node) {
	switch n := g.IntN(16); {
	case n == 0:
		x = g.arrayKey()
	case n == 1:
		r, x = g.flattened()
	default:
		x = g.expr(1 + g.IntN(3))
	}
	r.Expr, r.Doc, r.Xattrs = x.text, pick(g, documents), pick(g, attributes)
	if g.IntN(3) == 0 {
		r.Doc = g.document()
	}
	return r, x
}

// document generates a document of drawn values.
func (g *generator) document() json.RawMessage {
	var b strings.Builder
	b.WriteString(`{"we ird":1`)
	for _, name := range "abcdefgt" {
		if g.IntN(8) > 0 {
			fmt.Fprintf(&b, ",%q:%s", string(name), g.value(3))
		}
	}
	b.WriteByte('}')
	return json.RawMessage(b.String())
}

// value generates the JSON text of a value of at most the given number of levels.
func (g *generator) value(depth int) string {
	if depth == 0 || g.IntN(2) == 0 {
		return pick(g, scalars)
	}
	var parts []string
	array := g.IntN(2) == 0
	names := g.Perm(len(members))
	for i := range g.IntN(5) {
		part := g.value(depth - 1)
		if !array {
			part = members[names[i]] + part
		}
		parts = append(parts, part)
	}
	if array {
		return "[" + strings.Join(parts, ",") + "]"
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// expr generates an expression of at most the given number of levels.
func (g *generator) expr(depth int) *node {
	switch {
	case depth == 0 || g.IntN(8) == 0:
		return leaf(pick(g, leaves))
	case g.IntN(80) == 0:
		return g.refused()
	case g.IntN(3) > 0:
		return g.call(pick(g, g.functions), depth)
	case g.IntN(4) == 0:
		return g.comprehension(depth)
	}
	return g.construct(depth)
}

// refused generates a call that is refused according to the page.
func (g *generator) refused() *node {
	name := pick(g, pick(g, expression.RefusedFunctionTable()).Names)
	if strings.HasSuffix(name, "_") {
		name += "STR"
	}
	return leaf(name + pick(g, []string{"()", "(a)", "(a, b)"}))
}

// call generates a call with arguments that mostly fit.
func (g *generator) call(f callable, depth int) *node {
	n := f.min
	if f.max > f.min {
		n += g.IntN(min(f.max-f.min, 2) + 1)
	}
	var args []*node
	for i := range n {
		args = append(args, g.argument(f, f.params[min(i, len(f.params)-1)], depth))
	}
	if f.name == "ARRAY_PREPEND" { // the array is the last one
		slices.Reverse(args)
	}
	form := pick(g, f.names) + "(" + strings.TrimSuffix(strings.Repeat("%s, ", n), ", ") + ")"
	if slices.Contains(g.unordered, f.name) {
		form = "ARRAY_SORT(" + form + ")"
	}
	return join(form, args...)
}

// written lists the parameters whose arguments must be literals; with other expressions one side refuses the call.
var written = []string{"pattern", "token like", "options", "part", "date part", "trunc part", "example"}

func (g *generator) argument(f callable, param string, depth int) *node {
	switch {
	case param == "part" && strings.HasPrefix(f.name, "DATE_PART"):
		param = "date part"
	case param == "part" && strings.HasPrefix(f.name, "DATE_TRUNC"):
		param = "trunc part"
	case param == "n" && strings.HasPrefix(f.name, "DATE_RANGE"): // larger values overflow there and never end
		return leaf(pick(g, arguments["few"]))
	case param == "like":
		param = "token like"
	case param == "array" && slices.Contains([]string{"ARRAY_MOVE", "ARRAY_SWAP", "ARRAY_EXCEPT"}, f.name):
		return leaf(pick(g, []string{"c", "d", "e"})) // the other evaluator modifies constants in place
	}
	fit := arguments[param]
	if slices.Contains(written, param) || len(fit) > 0 && g.IntN(6) > 0 {
		return leaf(pick(g, fit))
	}
	return g.expr(depth - 1)
}

// array generates an expression whose value is mostly an array.
func (g *generator) array(depth int) *node {
	if g.IntN(8) == 0 {
		return join("(%s)", g.expr(depth-1))
	}
	return leaf(pick(g, arguments["array"]))
}

// construct generates an operator with operands.
func (g *generator) construct(depth int) *node {
	x := func() *node { return g.expr(depth - 1) }
	if g.IntN(2) == 0 {
		return g.operator(x)
	}
	switch g.IntN(9) {
	case 0:
		return join("CASE WHEN %s THEN %s ELSE %s END", x(), x(), x())
	case 1:
		return join("CASE %s WHEN %s THEN %s WHEN %s THEN %s END", x(), x(), x(), x(), x())
	case 2:
		return join("EXISTS (%s)", x())
	case 3:
		return join("%s"+pick(g, []string{"[0:2]", "[1:]", "[-2:]", "[0:-1]", "[5:9]", "[1]", "[-1]", ".a", "[2:1]", "[*]",
			"[*].a", ".`a`", "[9]", "[-9:]", "[1.0]"}), g.array(depth))
	case 4:
		return join(pick(g, []string{"(%s)[%s]", "(%s).[%s]", "(%s)[%s:]"}), g.array(depth), x())
	case 5:
		return join("[IFMISSING(%s, NULL), IFMISSING(NULL, %s)]", x(), x())
	case 6:
		return join(`{"p": %s, "q": %s}`, x(), x())
	case 7:
		return join(`{%s: %s, "q": %s}`, join(pick(g, []string{"TOSTRING(%s)", `"p" || TOSTRING(%s)`}), x()), x(), x())
	}
	return join("{a, e.x, d[0].n, \"z\": %s}", x())
}

func (g *generator) operator(x func() *node) *node {
	switch g.IntN(10) {
	case 0:
		return join("(%s)"+pick(g, []string{" = ", " == ", " != ", " <> ", " < ", " <= ", " > ", " >= "})+"(%s)", x(), x())
	case 1:
		return join("(%s)"+pick(g, []string{" AND ", " OR "})+"(%s)", x(), x())
	case 2:
		return join("NOT (%s)", x())
	case 3:
		return join("(%s)"+pick(g, []string{" IS NULL", " IS NOT NULL", " IS MISSING", " IS NOT MISSING", " IS VALUED",
			" IS NOT VALUED", " IS KNOWN", " IS NOT KNOWN"}), x())
	case 4:
		return join("%s"+pick(g, []string{" + ", " - ", " * ", " / ", " %% "})+"(%s)",
			leaf(pick(g, arguments["number"])), x())
	case 5:
		return join("-(%s)", x())
	case 6:
		return join("(%s) || (%s)", x(), x())
	case 7:
		like := leaf(pick(g, arguments["like"]))
		if g.IntN(6) == 0 {
			like = join("(%s)", x())
		}
		return join("(%s)"+pick(g, []string{" LIKE ", " NOT LIKE "})+"%s", x(), like)
	case 8:
		return join("(%s)"+pick(g, []string{" IN ", " NOT IN ", " WITHIN ", " NOT WITHIN "})+"%s", x(), g.array(1))
	}
	return join("(%s)"+pick(g, []string{" BETWEEN ", " NOT BETWEEN "})+"(%s) AND (%s)", x(), x(), x())
}

// over generates the range of a comprehension.
func (g *generator) over(depth int) *node {
	form := pick(g, ranges)
	return join(form, g.sources(strings.Count(form, "%s"), depth)...)
}

func (g *generator) sources(n, depth int) (list []*node) {
	for range n {
		list = append(list, g.array(depth))
	}
	return list
}

// comprehension generates ANY, EVERY, ARRAY, FIRST and OBJECT.
func (g *generator) comprehension(depth int) *node {
	over, body, when := g.over(depth), pick(g, bodies), ""
	if g.IntN(2) == 0 {
		when = " WHEN " + pick(g, bodies)
	}
	x := join(pick(g, []string{
		"ANY %s SATISFIES " + body + " END", "SOME %s SATISFIES " + body + " END", "EVERY %s SATISFIES " + body + " END",
		"ANY AND EVERY %s SATISFIES " + body + " END", "SOME AND EVERY %s SATISFIES " + body + " END",
		"ARRAY " + body + " FOR %s" + when + " END", "FIRST " + body + " FOR %s" + when + " END",
		"OBJECT TOSTRING(v):" + body + " FOR %s" + when + " END", "OBJECT i:" + body + " FOR %s" + when + " END",
	}), over)
	x.kids = over.kids // the expressions after IN; the rest is not an expression by itself
	return x
}

// arrayKey generates an array key.
func (g *generator) arrayKey() *node {
	words := pick(g, []string{"DISTINCT ", "ALL ", "ALL DISTINCT "})
	switch g.IntN(3) {
	case 0:
		return join(words+"%s", g.array(2))
	case 1:
		over, when := g.over(1), ""
		if g.IntN(2) == 0 {
			when = " WHEN " + pick(g, bodies)
		}
		x := join(words+"ARRAY "+pick(g, bodies)+" FOR %s"+when+" END", over)
		x.kids = over.kids
		return x
	}
	return join(words+"ARRAY ("+pick(g, []string{"DISTINCT ", "ALL "})+
		pick(g, []string{"v", "v.n", "ARRAY w FOR w IN v END", "ARRAY w.n FOR w IN v WHEN w > 1 END",
			"ARRAY [v, w] FOR w IN v.a END"})+") FOR v IN %s END", g.array(1))
}

// absent represents MISSING in the arrays by which flattened keys are emulated there: the other evaluator does not
// support flattened keys.
const absent = `{"MISSING":[]}`

// flattened generates a key of several parts. The other evaluator gets the array of all parts.
func (g *generator) flattened() (request, *node) {
	var parts, arrays []string
	var desc []bool
	for range 1 + g.IntN(3) {
		part := "(" + pick(g, bodies) + ")"
		desc = append(desc, g.IntN(3) == 0)
		arrays = append(arrays, "CASE WHEN "+part+" IS MISSING THEN "+absent+" ELSE "+part+" END")
		if desc[len(desc)-1] {
			part += " DESC"
		}
		parts = append(parts, part)
	}
	over, when := g.over(1), ""
	if g.IntN(2) == 0 {
		when = " WHEN " + pick(g, bodies)
	}
	tail := " FOR " + over.text + when + " END"
	words := pick(g, []string{"DISTINCT ", "ALL "})
	return request{Here: words + "ARRAY FLATTEN_KEYS(" + strings.Join(parts, ", ") + ")" + tail, Desc: desc},
		&node{words + "ARRAY [" + strings.Join(arrays, ", ") + "]" + tail, over.kids}
}
