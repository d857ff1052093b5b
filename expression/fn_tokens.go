package expression

import (
	"bytes"
	"fmt"
	"slices"
	"unicode"

	"tidemark/collate"
)

// tokenOptions are what the second argument of TOKENS says.
type tokenOptions struct {
	change          func(s *Scratch, t []byte) value // of the case; nil leaves it
	names, specials bool
}

// tokens is TOKENS(value [, options]).
func tokens(s *Scratch, a []value) value {
	var o tokenOptions
	if len(a) == 2 && !s.tokenOptions(a[1], &o) {
		return missing
	}
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	if !s.tokens(a[0], o) {
		return missing
	}
	return s.list(s.distinct(s.stack[base:]))
}

// checkTokens says what is wrong with options that are written down, or nothing.
func checkTokens(args []Expr) string {
	const known = `known: "case" (lower, upper), "names" and "specials" (true, false)`
	if len(args) < 2 {
		return ""
	}
	o, ok := args[1].(*Object)
	if !ok {
		return "the options of TOKENS are an object that stands in the expression; " + known
	}
	for _, m := range o.Members {
		l, _ := m.Value.(*Literal)
		switch {
		case l == nil:
		case m.Name == "case" && l.Kind == collate.String && (l.Text == "lower" || l.Text == "upper"):
			continue
		case (m.Name == "names" || m.Name == "specials") && (l.Kind == collate.True || l.Kind == collate.False):
			continue
		}
		return fmt.Sprintf("TOKENS does not know the option %q with the value %s; %s", m.Name, m.Value, known)
	}
	return ""
}

// tokenOptions reads the options, which the parser has checked. False: s.err.
func (s *Scratch) tokenOptions(v value, o *tokenOptions) bool {
	list, ok := s.fields(v)
	for _, f := range list {
		switch on := s.valueOf(f.text); string(f.name) {
		case "case":
			o.change = lower
			if string(on.data) == "upper" {
				o.change = upper
			}
		case "names":
			o.names = on.kind == kindTrue
		case "specials":
			o.specials = on.kind == kindTrue
		}
	}
	return ok
}

// tokens puts the words of a value, and of what is in it, on the stack. False: s.err.
func (s *Scratch) tokens(v value, o tokenOptions) bool {
	switch v.kind {
	case kindString:
		return s.words(v.data, o)
	case kindArray:
		for w := walk(v.data); w.more(); {
			text := w.raw(']')
			if !s.look(text) || !s.tokens(s.valueOf(text), o) {
				return false
			}
		}
	case kindObject:
		list, ok := s.fields(v)
		if !ok {
			return false
		}
		for _, f := range slices.Clone(list) { // the members within use the same room
			if o.names && !s.words(f.name, o) || !s.tokens(s.valueOf(f.text), o) {
				return false
			}
		}
	case kindNumber, kindTrue, kindFalse:
		s.stack = append(s.stack, v)
	}
	return s.err == nil
}

// words puts the words of a text on the stack.
func (s *Scratch) words(text []byte, o tokenOptions) bool {
	other := func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }
	divide := other
	if o.specials {
		divide = unicode.IsSpace
	}
	for _, word := range bytes.FieldsFunc(text, divide) {
		if word = bytes.TrimFunc(word, other); len(word) == 0 {
			continue
		}
		if !s.spend(1 + len(word)/stepBytes) {
			return false
		}
		v := value{kindString, word}
		if o.change != nil {
			v = o.change(s, word)
		}
		s.stack = append(s.stack, v)
	}
	return true
}
