package expression

import (
	"slices"
	"strings"

	"tidemark/collate"
)

const (
	// MaxList bounds the arguments of a function, and the items of an array or object, in a text.
	MaxList = 1000
)

// key parses a key expression: one that makes an entry for each element of an array, or a plain one.
func (p *parser) key() (Expr, error) {
	x, err := p.plainKey()
	if err != nil {
		return nil, err
	}
	return p.includeMissing(x)
}

// includeMissing parses INCLUDE MISSING after a key, if present.
func (p *parser) includeMissing(x Expr) (Expr, error) {
	at := p.tok
	if ok, err := p.acceptWord("INCLUDE"); err != nil || !ok {
		return x, err
	}
	if _, again := x.(*MissingKey); again {
		return nil, p.fail(at, "INCLUDE MISSING is given twice")
	}
	return &MissingKey{X: x}, p.wantWord("MISSING")
}

func (p *parser) plainKey() (Expr, error) {
	at := p.tok
	distinct, isArray, err := p.arrayWords()
	if err != nil {
		return nil, err
	}
	if isArray {
		return p.arrayKey(at, distinct)
	}
	if x, ok, err := p.keyInParentheses(p.plainKey); ok || err != nil {
		return x, err
	}
	return p.expression(0)
}

// arrayWords consumes ALL, DISTINCT or ALL DISTINCT.
func (p *parser) arrayWords() (distinct, isArray bool, err error) {
	if isArray, err = p.acceptWord("ALL"); err != nil {
		return false, false, err
	}
	distinct, err = p.acceptWord("DISTINCT")
	return distinct, isArray || distinct, err
}

// arrayKey parses what follows ALL or DISTINCT.
func (p *parser) arrayKey(at token, distinct bool) (Expr, error) {
	p.nestable = true
	x, err := p.expression(0)
	p.nestable = false
	if err != nil {
		return nil, err
	}
	key := &ArrayKey{Distinct: distinct, X: x}
	if !wellNested(key) {
		return nil, p.fail(at, "DISTINCT and ALL are allowed only before a whole key expression, or before the whole body "+
			"of its ARRAY … FOR")
	}
	return key, nil
}

// keyInParentheses parses ( [(…] DISTINCT … ), if present.
func (p *parser) keyInParentheses(read func() (Expr, error)) (x Expr, ok bool, err error) {
	if !p.isOp("(") || !p.arrayWordsAhead() {
		return nil, false, nil
	}
	if p.parentheses++; p.parentheses > MaxNesting {
		return nil, false, p.fail(p.tok, "parentheses are nested deeper than %d levels", MaxNesting)
	}
	defer func() { p.parentheses-- }()
	if err := p.advance(); err != nil {
		return nil, false, err
	}
	if x, err = read(); err != nil {
		return nil, false, err
	}
	return x, true, p.wantOp(")")
}

// arrayWordsAhead reports whether ALL or DISTINCT follows the parentheses that begin here.
func (p *parser) arrayWordsAhead() bool {
	ahead := p.lex
	for {
		next, err := ahead.next()
		switch {
		case err != nil:
			return false
		case next.kind == tokOp && next.value == "(":
		default:
			return next.kind == tokWord && (strings.EqualFold(next.value, "ALL") || strings.EqualFold(next.value, "DISTINCT"))
		}
	}
}

// nestedKey parses [ALL|DISTINCT] … as the body of ARRAY … FOR in an array key, if present.
func (p *parser) nestedKey() (x Expr, ok bool, err error) {
	at := p.tok
	distinct, isArray, err := p.arrayWords()
	if err != nil {
		return nil, false, err
	}
	if !isArray {
		return p.keyInParentheses(func() (Expr, error) {
			x, _, err := p.nestedKey()
			return x, err
		})
	}
	x, err = p.arrayKey(at, distinct)
	return x, true, err
}

// wellNested reports whether array keys within an array key are the bodies of its arrays only.
func wellNested(key *ArrayKey) bool {
	x := key.X
	for {
		each, ok := x.(*Each)
		if !ok || each.Kind != EachArray {
			break
		}
		inner, nested := each.Body.(*ArrayKey)
		flat, last := each.Body.(*Flatten)
		if !nested && !last {
			break
		}
		for _, o := range each.operands() {
			if o != each.Body && has(o, isOfArrayKey) {
				return false
			}
		}
		if last {
			return !slices.ContainsFunc(flat.operands(), func(o Expr) bool { return has(o, isOfArrayKey) })
		}
		x = inner.X
	}
	return !has(x, isOfArrayKey)
}

// isOfArrayKey reports whether an expression is only allowed in array keys.
func isOfArrayKey(x Expr) bool { return is[*ArrayKey](x) || is[*Flatten](x) }

// star parses the rest of x[*], which is ARRAY_STAR(x).
func (p *parser) star(x Expr) (Expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	return &Call{Name: "ARRAY_STAR", Args: []Expr{x}, Star: true, fn: functionNamed("ARRAY_STAR")}, p.wantOp("]")
}

// test parses [NOT] LIKE, IN, WITHIN or BETWEEN and what follows.
func (p *parser) test(x Expr) (Expr, error) {
	not, err := p.acceptWord("NOT")
	if err != nil {
		return nil, err
	}
	word := strings.ToUpper(p.tok.value)
	if p.tok.kind != tokWord || !slices.Contains([]string{"LIKE", "IN", "WITHIN", "BETWEEN"}, word) {
		return nil, p.unexpected("LIKE, IN, WITHIN or BETWEEN after NOT")
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	right, err := p.expression(precOrder)
	if err != nil {
		return nil, err
	}
	switch word {
	case "IN":
		return &In{X: x, List: right, Not: not}, nil
	case "WITHIN":
		return &Within{X: x, Whole: right, Not: not}, nil
	case "LIKE":
		return p.escape(&Like{X: x, Pattern: right, Not: not})
	}
	return p.upTo(&Between{X: x, Low: right, Not: not})
}

// upTo parses what follows the lower bound of BETWEEN.
func (p *parser) upTo(x *Between) (_ Expr, err error) {
	if err := p.wantWord("AND"); err != nil {
		return nil, err
	}
	if x.High, err = p.expression(precOrder); err != nil {
		return nil, err
	}
	return x, nil
}

func (p *parser) escape(x *Like) (Expr, error) {
	ok, err := p.acceptWord("ESCAPE")
	if err != nil || !ok {
		return x, err
	}
	x.Escape, err = p.expression(precOrder)
	return x, err
}

// list parses expressions up to the closing mark, and consumes it.
func (p *parser) list(closing string) (list []Expr, err error) {
	if ok, err := p.acceptOp(closing); ok || err != nil {
		return nil, err
	}
	err = p.separated(func() error {
		if len(list) == MaxList {
			return p.fail(p.tok, "more than %d expressions in a list", MaxList)
		}
		x, err := p.expression(0)
		list = append(list, x)
		return err
	})
	if err != nil {
		return nil, err
	}
	if !p.isOp(closing) {
		return nil, p.unexpected("an operator, a comma or " + closing)
	}
	return list, p.advance()
}

// deeper counts one level of brackets around read.
func (p *parser) deeper(read func() (Expr, error)) (Expr, error) {
	if p.parentheses++; p.parentheses > MaxNesting {
		return nil, p.fail(p.tok, "parentheses are nested deeper than %d levels", MaxNesting)
	}
	nestable := p.nestable
	p.nestable = false
	x, err := read()
	p.nestable = nestable
	p.parentheses--
	return x, err
}

func (p *parser) array() (Expr, error) {
	x, err := p.deeper(func() (Expr, error) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		items, err := p.list("]")
		return &Array{Items: items}, err
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}

func (p *parser) object() (Expr, error) {
	x, err := p.deeper(func() (Expr, error) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		return p.members()
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}

func (p *parser) members() (Expr, error) {
	x := &Object{}
	if ok, err := p.acceptOp("}"); ok || err != nil {
		return x, err
	}
	err := p.separated(func() error {
		if len(x.Members) == MaxList {
			return p.fail(p.tok, "more than %d members", MaxList)
		}
		at := p.tok
		m, err := p.member()
		if err != nil {
			return err
		}
		if m.Computed == nil && slices.ContainsFunc(x.Members, func(o Member) bool {
			return o.Computed == nil && o.Name == m.Name
		}) {
			return p.fail(at, "the object has two members %q", m.Name)
		}
		x.Members = append(x.Members, m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return x, p.wantOp("}")
}

// member parses name: value, or a path alone, whose last name is the member's.
func (p *parser) member() (m Member, err error) {
	at := p.tok
	name, err := p.expression(0)
	if err != nil {
		return m, err
	}
	if !p.isOp(":") {
		if m.Name = lastName(name); m.Name == "" {
			return m, p.fail(at, "a member needs a name: {\"name\": %s}", name)
		}
		m.Value = name
		return m, nil
	}
	if l, ok := name.(*Literal); ok && l.Kind == collate.String {
		m.Name = l.Text
	} else {
		m.Computed = name
	}
	if err := p.advance(); err != nil {
		return m, err
	}
	m.Value, err = p.expression(0)
	return m, err
}

// lastName returns the last name of a path, or "".
func lastName(x Expr) string {
	var steps []Step
	switch x := x.(type) {
	case *Path:
		steps = x.Steps
	case *Nav:
		steps = x.Steps
	case *Var:
		return x.Name
	}
	if len(steps) == 0 {
		return ""
	}
	return steps[len(steps)-1].Name
}

// caseOf parses CASE … END.
func (p *parser) caseOf() (Expr, error) {
	x, err := p.deeper(func() (Expr, error) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		c := &Case{}
		var err error
		if !p.isWord("WHEN") {
			if c.Operand, err = p.expression(0); err != nil {
				return nil, err
			}
		}
		for p.isWord("WHEN") {
			if err := p.when(c); err != nil {
				return nil, err
			}
		}
		if len(c.Whens) == 0 {
			return nil, p.unexpected("WHEN")
		}
		if err := p.orElse(c); err != nil {
			return nil, err
		}
		return c, p.wantWord("END")
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}

// orElse parses ELSE, if present.
func (p *parser) orElse(c *Case) error {
	ok, err := p.acceptWord("ELSE")
	if err == nil && ok {
		c.Else, err = p.expression(0)
	}
	return err
}

// when parses a branch of a CASE.
func (p *parser) when(c *Case) (err error) {
	if err := p.wantWord("WHEN"); err != nil {
		return err
	}
	var w When
	if w.If, err = p.expression(0); err != nil {
		return err
	}
	if err := p.wantWord("THEN"); err != nil {
		return err
	}
	if w.Then, err = p.expression(0); err != nil {
		return err
	}
	if c.Whens = append(c.Whens, w); len(c.Whens) > MaxList {
		return p.fail(p.tok, "more than %d branches of a CASE", MaxList)
	}
	return nil
}

// satisfies parses ANY v IN x SATISFIES y END, EVERY …, and ANY AND EVERY ….
func (p *parser) satisfies(tok token) (Expr, error) {
	return p.deeper(func() (Expr, error) {
		x := &Each{Kind: EachKind(strings.ToUpper(tok.value))}
		if strings.EqualFold(tok.value, "SOME") {
			x.Kind = EachAny
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if ok, err := p.acceptWord("AND"); err != nil {
			return nil, err
		} else if ok {
			if err := p.wantWord("EVERY"); err != nil {
				return nil, err
			}
			x.Kind = EachAnyEvery
		}
		if err := p.bindings(x); err != nil {
			return nil, err
		}
		if err := p.wantWord("SATISFIES"); err != nil {
			return nil, err
		}
		var err error
		if x.Body, err = p.scoped(x); err != nil {
			return nil, err
		}
		return x, p.wantWord("END")
	})
}

// maxBindings bounds the variables of one ANY, EVERY, ARRAY, FIRST or OBJECT.
const maxBindings = 16

// bindings parses one or more of v IN x, i:v IN x or v WITHIN x.
func (p *parser) bindings(x *Each) error {
	return p.separated(func() error {
		if len(x.Bindings) == maxBindings {
			return p.fail(p.tok, "more than %d variables", maxBindings)
		}
		b, err := p.binding()
		x.Bindings = append(x.Bindings, b)
		return err
	})
}

func (p *parser) binding() (b Binding, err error) {
	if b.Var, err = p.variable(); err != nil {
		return b, err
	}
	if ok, err := p.acceptOp(":"); err != nil {
		return b, err
	} else if ok {
		b.Name = b.Var
		if b.Var, err = p.variable(); err != nil {
			return b, err
		}
	}
	if b.Within, err = p.acceptWord("WITHIN"); err != nil {
		return b, err
	}
	if !b.Within {
		if err := p.wantWord("IN"); err != nil {
			return b, err
		}
	}
	b.Over, err = p.expression(0)
	return b, err
}

// variable parses the name of a variable.
func (p *parser) variable() (string, error) {
	if p.tok.kind != tokQuoted && (p.tok.kind != tokWord || !isName(p.tok.value)) {
		return "", p.unexpected("the name of a variable")
	}
	name := p.tok.value
	return name, p.advance()
}

// scoped parses an expression in which the variables of an Each are bound.
func (p *parser) scoped(x *Each) (Expr, error) { return p.scopedBody(x, false) }

func (p *parser) scopedBody(x *Each, nestable bool) (Expr, error) {
	outer := len(p.scope)
	for _, b := range x.Bindings {
		if b.Name != "" {
			p.scope = append(p.scope, b.Name)
		}
		p.scope = append(p.scope, b.Var)
	}
	body, err := p.body(nestable)
	p.scope = p.scope[:outer]
	return body, err
}

// body parses an expression or, if allowed, an array key.
func (p *parser) body(nestable bool) (Expr, error) {
	if nestable {
		if p.isWord("FLATTEN_KEYS") && p.followedByParenthesis() {
			return p.flatten()
		}
		if x, ok, err := p.nestedKey(); ok || err != nil {
			return x, err
		}
	}
	p.nestable = false
	return p.expression(0)
}

// comprehension parses ARRAY x FOR v IN y [WHEN z] END. The body precedes the declaration of its variable, so it is
// parsed twice: the first time only to find its end.
func (p *parser) comprehension(tok token) (Expr, error) {
	nestable := p.nestable && strings.EqualFold(tok.value, "ARRAY")
	x, err := p.deeper(func() (Expr, error) {
		x := &Each{Kind: EachKind(strings.ToUpper(tok.value))}
		if err := p.advance(); err != nil {
			return nil, err
		}
		body, tokAtBody := p.lex, p.tok
		if p.lookahead++; p.lookahead > maxLookahead {
			return nil, p.fail(tok, "ARRAY … FOR is nested deeper than %d levels", maxLookahead)
		}
		err := p.mapping(x, func() (Expr, error) { return p.body(nestable) })
		p.lookahead--
		if err != nil {
			return nil, err
		}
		if err := p.wantWord("FOR"); err != nil {
			return nil, err
		}
		if err := p.bindings(x); err != nil {
			return nil, err
		}
		rest, tokAtRest := p.lex, p.tok
		p.lex, p.tok = body, tokAtBody
		if err := p.mapping(x, func() (Expr, error) { return p.scopedBody(x, nestable) }); err != nil {
			return nil, err
		}
		p.lex, p.tok = rest, tokAtRest
		if err := p.onlyWhen(x); err != nil {
			return nil, err
		}
		return x, p.wantWord("END")
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}

// onlyWhen parses WHEN, if present.
func (p *parser) onlyWhen(x *Each) error {
	ok, err := p.acceptWord("WHEN")
	if err == nil && ok {
		x.When, err = p.scoped(x)
	}
	return err
}

// mapping parses the body of ARRAY and FIRST, or the name and the body of OBJECT.
func (p *parser) mapping(x *Each, read func() (Expr, error)) (err error) {
	if x.Kind == EachObject {
		if x.Name, err = read(); err != nil {
			return err
		}
		if err := p.wantOp(":"); err != nil {
			return err
		}
	}
	x.Body, err = read()
	return err
}

// maxLookahead bounds the nesting of ARRAY … FOR: each level doubles the cost of parsing.
const maxLookahead = 6

// followedByExpression reports whether the word FIRST begins FIRST x FOR …: it is a name if an operator or the end
// follows. No function has this name, so a parenthesis begins an expression.
func (p *parser) followedByExpression() bool {
	ahead := p.lex
	next, err := ahead.next()
	if err != nil {
		return false
	}
	switch next.kind {
	case tokEnd, tokOp:
		return next.kind == tokOp && (next.value == "{" || next.value == "(" || next.value == "[" &&
			arrayBefore(ahead, "FOR"))
	case tokWord:
		switch strings.ToUpper(next.value) {
		case "AND", "OR", "IS", "LIKE", "IN", "BETWEEN", "NOT", "ASC", "DESC", "WHERE", "WITH", "USING", "PARTITION", "THEN",
			"WHEN", "ELSE", "END",
			"FOR", "SATISFIES", "ESCAPE":
			return false
		}
	}
	return true
}

// arrayBefore reports whether a word follows the bracket that closes the one already scanned.
func arrayBefore(ahead lexer, word string) bool {
	for open := 1; open > 0; {
		next, err := ahead.next()
		switch {
		case err != nil || next.kind == tokEnd:
			return false
		case next.kind == tokOp && next.value == "[":
			open++
		case next.kind == tokOp && next.value == "]":
			open--
		}
	}
	next, err := ahead.next()
	return err == nil && next.kind == tokWord && strings.EqualFold(next.value, word)
}

// followedByName reports whether the word SOME begins SOME v IN x SATISFIES y END, as ANY does: it is a name otherwise.
func (p *parser) followedByName() bool {
	ahead := p.lex
	next, err := ahead.next()
	return err == nil && (next.kind == tokQuoted || next.kind == tokWord && isName(next.value) && p.followedByExpression())
}

// followedByParenthesis reports whether a call begins here.
func (p *parser) followedByParenthesis() bool {
	ahead := p.lex
	next, err := ahead.next()
	return err == nil && next.kind == tokOp && next.value == "("
}

// followedBy reports whether these words follow the current token.
func (p *parser) followedBy(words ...string) bool {
	ahead := p.lex
	for _, word := range words {
		next, err := ahead.next()
		if err != nil || next.kind != tokWord || !strings.EqualFold(next.value, word) {
			return false
		}
	}
	return true
}

// call parses a function's arguments.
func (p *parser) call(tok token) (Expr, error) {
	name := strings.ToUpper(tok.value)
	fn := functionNamed(name)
	if fn == nil {
		if form := operatorFormNamed(name); form != nil {
			return p.operatorCall(tok, form)
		}
		return nil, p.unknownFunction(tok, name)
	}
	x, err := p.deeper(func() (Expr, error) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		args, err := p.list(")")
		return &Call{Name: fn.Name, Args: args, fn: fn}, err
	})
	if err != nil {
		return nil, err
	}
	c := x.(*Call)
	wrong := fn.check(c.Args)
	if wrong == "" && fn.newly != nil && !p.stored {
		wrong = fn.newly(c.Args)
	}
	if wrong != "" {
		return nil, p.fail(tok, "%s", wrong)
	}
	return p.into(c)
}
