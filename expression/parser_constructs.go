package expression

import (
	"slices"
	"strings"
)

const (
	// MaxList limits the arguments of a function, and the items of an array or object, that a text may write down.
	MaxList = 1000
	// eachVariable is the name that path[*] gives to its elements.
	eachVariable = "v"
)

// key reads a key expression: one that makes an entry for each element of an array, or a plain one.
func (p *parser) key() (Expr, error) {
	p.starAllowed, p.starred = true, nil
	defer func() { p.starAllowed = false }()
	distinct := p.isWord("DISTINCT")
	if distinct || p.isWord("ALL") {
		if err := p.advance(); err != nil {
			return nil, err
		}
		x, err := p.expression(0)
		if err != nil {
			return nil, err
		}
		if p.starred != nil && x == Expr(p.starred) { // [*] says ALL by itself
			p.starred.Distinct = distinct
			return x, nil
		}
		if p.starred == nil {
			return &ArrayKey{Distinct: distinct, X: x}, nil
		}
		return nil, p.partlyStarred()
	}
	x, err := p.expression(0)
	if err != nil {
		return nil, err
	}
	if p.starred != nil && x != Expr(p.starred) {
		return nil, p.partlyStarred()
	}
	return x, nil
}

func (p *parser) partlyStarred() error {
	return p.fail(p.star, "path[*] has to be the whole key expression; write ALL ARRAY … FOR v IN path END instead")
}

// every reads the rest of path[*].rest, which is ALL ARRAY v.rest FOR v IN path END, or ALL path.
func (p *parser) every(over Expr) (Expr, error) {
	at := p.tok
	if !p.starAllowed {
		return nil, p.fail(at, "[*] stands in a key expression, once; elsewhere write ANY v IN path SATISFIES … END, or ARRAY … FOR v IN path END")
	}
	p.starAllowed, p.star = false, at
	if err := p.advance(); err != nil {
		return nil, err
	}
	if err := p.wantOp("]"); err != nil {
		return nil, err
	}
	p.starred = &ArrayKey{X: over}
	body, err := p.into(&Var{Name: eachVariable})
	if err != nil {
		return nil, err
	}
	if _, plain := body.(*Var); !plain {
		p.starred.X = &Each{Kind: EachArray, Var: eachVariable, Over: over, Body: body}
	}
	return p.starred, nil
}

// test reads [NOT] LIKE, IN or BETWEEN and what follows.
func (p *parser) test(x Expr) (Expr, error) {
	not, err := p.acceptWord("NOT")
	if err != nil {
		return nil, err
	}
	word := strings.ToUpper(p.tok.value)
	if p.tok.kind != tokWord || word != "LIKE" && word != "IN" && word != "BETWEEN" {
		return nil, p.unexpected("LIKE, IN or BETWEEN after NOT")
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
	case "LIKE":
		return p.escape(&Like{X: x, Pattern: right, Not: not})
	}
	if err := p.wantWord("AND"); err != nil {
		return nil, err
	}
	high, err := p.expression(precOrder)
	if err != nil {
		return nil, err
	}
	return &Between{X: x, Low: right, High: high, Not: not}, nil
}

func (p *parser) escape(x *Like) (Expr, error) {
	ok, err := p.acceptWord("ESCAPE")
	if err != nil || !ok {
		return x, err
	}
	x.Escape, err = p.expression(precOrder)
	return x, err
}

// list reads expressions up to the closing mark, and passes it.
func (p *parser) list(closing string) (list []Expr, err error) {
	if ok, err := p.acceptOp(closing); ok || err != nil {
		return nil, err
	}
	for {
		if len(list) == MaxList {
			return nil, p.fail(p.tok, "more than %d expressions in a list", MaxList)
		}
		x, err := p.expression(0)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
		if ok, err := p.acceptOp(","); err != nil {
			return nil, err
		} else if ok {
			continue
		}
		if !p.isOp(closing) {
			return nil, p.unexpected("an operator, a comma or " + closing)
		}
		return list, p.advance()
	}
}

// deeper counts one level of brackets around read.
func (p *parser) deeper(read func() (Expr, error)) (Expr, error) {
	if p.parentheses++; p.parentheses > MaxNesting {
		return nil, p.fail(p.tok, "parentheses are nested deeper than %d levels", MaxNesting)
	}
	starAllowed := p.starAllowed
	p.starAllowed = false
	x, err := read()
	p.starAllowed = starAllowed
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
	for {
		if p.tok.kind != tokString {
			return nil, p.unexpected("the name of a member as a string")
		}
		m := Member{Name: p.tok.value}
		if slices.ContainsFunc(x.Members, func(o Member) bool { return o.Name == m.Name }) {
			return nil, p.fail(p.tok, "the object has two members %q", m.Name)
		}
		if len(x.Members) == MaxList {
			return nil, p.fail(p.tok, "more than %d members", MaxList)
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if err := p.wantOp(":"); err != nil {
			return nil, err
		}
		var err error
		if m.Value, err = p.expression(0); err != nil {
			return nil, err
		}
		x.Members = append(x.Members, m)
		if ok, err := p.acceptOp(","); err != nil {
			return nil, err
		} else if ok {
			continue
		}
		return x, p.wantOp("}")
	}
}

// caseOf reads CASE … END.
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
		for {
			if ok, err := p.acceptWord("WHEN"); err != nil {
				return nil, err
			} else if !ok {
				break
			}
			var w When
			if w.If, err = p.expression(0); err != nil {
				return nil, err
			}
			if err := p.wantWord("THEN"); err != nil {
				return nil, err
			}
			if w.Then, err = p.expression(0); err != nil {
				return nil, err
			}
			if c.Whens = append(c.Whens, w); len(c.Whens) > MaxList {
				return nil, p.fail(p.tok, "more than %d branches of a CASE", MaxList)
			}
		}
		if len(c.Whens) == 0 {
			return nil, p.unexpected("WHEN")
		}
		if ok, err := p.acceptWord("ELSE"); err != nil {
			return nil, err
		} else if ok {
			if c.Else, err = p.expression(0); err != nil {
				return nil, err
			}
		}
		return c, p.wantWord("END")
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}

// satisfies reads ANY v IN x SATISFIES y END, EVERY …, and ANY AND EVERY ….
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
		if err := p.binding(x); err != nil {
			return nil, err
		}
		if err := p.wantWord("SATISFIES"); err != nil {
			return nil, err
		}
		var err error
		if x.Body, err = p.scoped(x.Var); err != nil {
			return nil, err
		}
		return x, p.wantWord("END")
	})
}

// binding reads v IN x.
func (p *parser) binding(x *Each) error {
	if p.tok.kind != tokQuoted && (p.tok.kind != tokWord || !isName(p.tok.value)) {
		return p.unexpected("the name of a variable")
	}
	x.Var = p.tok.value
	if err := p.advance(); err != nil {
		return err
	}
	if p.isOp(":") {
		return p.unsupported(p.tok, "a variable for the place of the element is not supported")
	}
	if err := p.wantWord("IN"); err != nil {
		return err
	}
	var err error
	if x.Over, err = p.expression(0); err != nil {
		return err
	}
	if p.isOp(",") {
		return p.unsupported(p.tok, "several variables are not supported; nest one construct in another")
	}
	return nil
}

// scoped reads an expression in which a variable is bound.
func (p *parser) scoped(name string) (Expr, error) {
	p.scope = append(p.scope, name)
	x, err := p.expression(0)
	p.scope = p.scope[:len(p.scope)-1]
	return x, err
}

// comprehension reads ARRAY x FOR v IN y [WHEN z] END. The body stands before its variable is known, so that it is read
// twice: the first time only to get past it.
func (p *parser) comprehension(tok token) (Expr, error) {
	x, err := p.deeper(func() (Expr, error) {
		x := &Each{Kind: EachKind(strings.ToUpper(tok.value))}
		if err := p.advance(); err != nil {
			return nil, err
		}
		body, tokAtBody := p.lex, p.tok
		if p.lookahead++; p.lookahead > maxLookahead {
			return nil, p.fail(tok, "ARRAY … FOR is nested deeper than %d levels", maxLookahead)
		}
		_, err := p.expression(0)
		p.lookahead--
		if err != nil {
			return nil, err
		}
		if err := p.wantWord("FOR"); err != nil {
			return nil, err
		}
		if err := p.binding(x); err != nil {
			return nil, err
		}
		rest, tokAtRest := p.lex, p.tok
		p.lex, p.tok = body, tokAtBody
		if x.Body, err = p.scoped(x.Var); err != nil {
			return nil, err
		}
		p.lex, p.tok = rest, tokAtRest
		if ok, err := p.acceptWord("WHEN"); err != nil {
			return nil, err
		} else if ok {
			if x.When, err = p.scoped(x.Var); err != nil {
				return nil, err
			}
		}
		return x, p.wantWord("END")
	})
	if err != nil {
		return nil, err
	}
	return p.into(x)
}

// maxLookahead limits how deep bodies of ARRAY … FOR are nested: each level doubles the work of reading it.
const maxLookahead = 6

// followedByExpression tells whether the word FIRST begins FIRST x FOR …: it is a name if an operator or the end follows.
// No function has this name, so that a parenthesis begins an expression.
func (p *parser) followedByExpression() bool {
	ahead := p.lex
	next, err := ahead.next()
	if err != nil {
		return false
	}
	switch next.kind {
	case tokEnd, tokOp:
		return next.kind == tokOp && (next.value == "{" || next.value == "(")
	case tokWord:
		switch strings.ToUpper(next.value) {
		case "AND", "OR", "IS", "LIKE", "IN", "BETWEEN", "NOT", "ASC", "DESC", "WHERE", "WITH", "USING", "PARTITION", "THEN", "WHEN", "ELSE", "END",
			"FOR", "SATISFIES", "ESCAPE":
			return false
		}
	}
	return true
}

// followedByName tells whether the word SOME begins SOME v IN x SATISFIES y END, as ANY does: it is a name otherwise.
func (p *parser) followedByName() bool {
	ahead := p.lex
	next, err := ahead.next()
	return err == nil && (next.kind == tokQuoted || next.kind == tokWord && isName(next.value) && p.followedByExpression())
}

// call reads a function's arguments.
func (p *parser) call(tok token) (Expr, error) {
	name := strings.ToUpper(tok.value)
	fn := functionNamed(name)
	if fn == nil {
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

// unknownFunction says why a name cannot be called, and what it may have been meant to be.
func (p *parser) unknownFunction(tok token, name string) error {
	switch {
	case name == "FLATTEN_KEYS":
		return p.unsupported(tok, "FLATTEN_KEYS() is not supported: an array key is one component; write the parts as one array, ARRAY [v.a, v.b] FOR v IN … END, which sorts part after part")
	case slices.Contains([]string{"COUNT", "SUM", "AVG", "MIN", "MAX"}, name):
		return p.fail(tok, "%s() is an aggregate over documents: a key must depend on one document alone; over the elements of an array it is ARRAY_%s()", name, name)
	case strings.HasPrefix(name, "NOW_"), strings.HasPrefix(name, "CLOCK_"), slices.Contains([]string{"NOW", "CLOCK", "RANDOM", "UUID",
		"CURRENT_USERS", "CURRENT_USER"}, name):
		return p.fail(tok, "%s() cannot be indexed: a key must depend on the document alone", name)
	case name == "HASH" || name == "RANGE":
		return p.fail(tok, "%s is no function; it stands after PARTITION BY", name)
	case slices.Contains([]string{"EXP", "LN", "LOG", "POWER", "SIN", "COS", "TAN", "ASIN", "ACOS", "ATAN", "ATAN2", "DEGREES", "RADIANS", "PI", "E"}, name):
		return p.unsupported(tok, "%s() is not supported: its last digits differ between processors, and replicas of an index must agree", name)
	}
	if like := closest(name); like != "" {
		return p.unsupported(tok, "the function %s() is not known; did you mean %s()?", name, like)
	}
	return p.unsupported(tok, "the function %s() is not known; docs/expressions.md lists all", name)
}
