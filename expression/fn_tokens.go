package expression

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"tidemark/collate"
)

// tokenOptions are the options of TOKENS, its second argument.
type tokenOptions struct {
	change func(s *Scratch, t []byte) value // changes the case; nil keeps it
	names  bool                             // names of members are tokens, too
	// split divides texts into words; specials adds the pieces between blanks. Without split a text is one token, and
	// trim removes the blanks around it.
	split, specials, trim bool
}

// tokens computes TOKENS(value [, options]).
func tokens(s *Scratch, a []value) value {
	o, ok := s.tokenOptions(a[1:])
	if !ok.fine {
		return value{kind: ok.kind}
	}
	base := len(s.stack)
	defer func() { s.stack = s.stack[:base] }()
	if !s.tokens(a[0], o) {
		return missing
	}
	return s.list(s.distinct(s.stack[base:]))
}

// containsToken makes CONTAINS_TOKEN and similar functions from a predicate on tokens.
func containsToken(wanted func(s *Scratch, a []value, token value) bool, kind collate.Kind) evaluation {
	return func(s *Scratch, a []value) value {
		switch {
		case a[0].kind == kindMissing || a[1].kind == kindMissing:
			return missing
		case a[0].kind == kindNull || a[1].kind == kindNull, kind != 0 && a[1].kind != kind:
			return null
		}
		o, ok := s.tokenOptions(a[2:])
		if !ok.fine {
			return value{kind: ok.kind}
		}
		base := len(s.stack)
		defer func() { s.stack = s.stack[:base] }()
		if !s.tokens(a[0], o) {
			return missing
		}
		return boolean(slices.ContainsFunc(s.stack[base:], func(v value) bool { return wanted(s, a, v) }))
	}
}

// checkTokens returns a check of literal options.
func checkTokens(argument int) func(args []Expr) string {
	const known = `known: "case" (lower, upper), "names", "specials", "split" and "trim" (true, false)`
	return func(args []Expr) string {
		if len(args) <= argument {
			return ""
		}
		o, ok := args[argument].(*Object)
		if !ok {
			return ""
		}
		for _, m := range o.Members {
			l, written := m.Value.(*Literal)
			switch {
			case m.Computed != nil, !written:
				continue
			case m.Name == "case" && l.Kind == kindString && (strings.EqualFold(l.Text, "lower") ||
				strings.EqualFold(l.Text, "upper")):
				continue
			case slices.Contains([]string{"names", "specials", "split", "trim"}, m.Name) &&
				(l.Kind == kindTrue || l.Kind == kindFalse):
				continue
			}
			return fmt.Sprintf("TOKENS does not support the option %q with the value %s; %s", m.Name, m.Value, known)
		}
		return ""
	}
}

// optionsRead reports whether the options are usable; otherwise kind is the function's result.
type optionsRead struct {
	fine bool
	kind collate.Kind
}

// tokenOptions reads the options, if there are any. Unknown ones are ignored.
func (s *Scratch) tokenOptions(a []value) (o tokenOptions, ok optionsRead) {
	o = tokenOptions{names: true, split: true, trim: true}
	if len(a) == 0 {
		return o, optionsRead{fine: true}
	}
	if a[0].kind != kindObject {
		return o, optionsRead{kind: min(a[0].kind, kindNull)}
	}
	list, fine := s.fields(a[0])
	if !fine {
		return o, optionsRead{kind: kindMissing}
	}
	for _, f := range list {
		on := s.valueOf(f.text)
		if string(f.name) == "case" && on.kind == kindString {
			switch strings.ToLower(string(on.data)) {
			case "lower":
				o.change = lower
			case "upper":
				o.change = upper
			}
		}
		if on.kind == kindTrue || on.kind == kindFalse {
			o.set(string(f.name), on.kind == kindTrue)
		}
	}
	return o, optionsRead{fine: true}
}

func (o *tokenOptions) set(name string, on bool) {
	switch name {
	case "names":
		o.names = on
	case "specials":
		o.specials = on
	case "split":
		o.split = on
	case "trim":
		o.trim = on
	}
}

// tokens pushes the words of a value, and of its contents, on the stack. It returns false if s.err is set.
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
		for _, f := range slices.Clone(list) { // nested calls of fields reuse the list
			if o.names && !s.words(f.name, o) || !s.tokens(s.valueOf(f.text), o) {
				return false
			}
		}
	case kindNull, kindNumber, kindTrue, kindFalse:
		s.stack = append(s.stack, v)
	}
	return s.err == nil
}

func noWord(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsNumber(r) }

func besideSpecials(r rune) bool {
	return unicode.IsSpace(r) || strings.ContainsRune("()[]{}", r)
}

// words pushes the words of a text on the stack; with specials, also the pieces between blanks and brackets, without
// trailing characters that are neither letters nor digits.
func (s *Scratch) words(text []byte, o tokenOptions) bool {
	if !o.split {
		if o.trim {
			text = bytes.TrimSpace(text)
		}
		return s.word(text, o)
	}
	for word := range bytes.FieldsFuncSeq(text, noWord) {
		if !s.word(word, o) {
			return false
		}
	}
	if !o.specials {
		return true
	}
	for word := range bytes.FieldsFuncSeq(text, besideSpecials) {
		if word = bytes.TrimRightFunc(word, noWord); len(word) > 0 && !s.word(word, o) {
			return false
		}
	}
	return true
}

func (s *Scratch) word(word []byte, o tokenOptions) bool {
	if len(word) == 0 {
		return true
	}
	if !s.spend(1 + len(word)/stepBytes) {
		return false
	}
	v := value{kindString, word}
	if o.change != nil {
		v = o.change(s, word)
	}
	s.stack = append(s.stack, v)
	return true
}
