package expression

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"tidemark/collate"
)

type tokenKind uint8

const (
	tokEnd    tokenKind = iota // end of the text
	tokWord                    // a bare word: keyword or identifier
	tokQuoted                  // an identifier in backticks
	tokString                  // a string in either quotes
	tokNumber                  // a number without sign, valid in JSON
	tokOp                      // an operator or punctuation mark
)

// token is one piece of a text. value is its meaning: a word, number or operator as written, an identifier or string
// unquoted.
type token struct {
	kind     tokenKind
	value    string
	pos, end int // byte offsets
}

// isNamed reports whether the token may be a name: a word, or an identifier in backticks.
func (t *token) isNamed() bool { return t.kind == tokWord || t.kind == tokQuoted }

// lexer splits a text into tokens on demand.
type lexer struct {
	text string
	pos  int
}

func (l *lexer) fail(pos int, format string, args ...any) *SyntaxError {
	return errorAt(l.text, pos, false, format, args...)
}

// skipBlank skips white space and comments: from -- to the end of the line, and between /* and */.
func (l *lexer) skipBlank() *SyntaxError {
	for l.pos < len(l.text) {
		switch rest := l.text[l.pos:]; {
		case strings.IndexByte(" \t\r\n", rest[0]) >= 0:
			l.pos++
		case strings.HasPrefix(rest, "--"):
			if i := strings.IndexByte(rest, '\n'); i >= 0 {
				l.pos += i + 1
			} else {
				l.pos = len(l.text)
			}
		case strings.HasPrefix(rest, "/*"):
			i := strings.Index(rest, "*/")
			if i < 0 {
				return l.fail(l.pos, "this comment is not closed: expected */")
			}
			l.pos += i + 2
		default:
			return nil
		}
	}
	return nil
}

// next returns the next token.
func (l *lexer) next() (token, *SyntaxError) {
	if err := l.skipBlank(); err != nil {
		return token{}, err
	}
	start := l.pos
	if start >= len(l.text) {
		return token{kind: tokEnd, pos: start, end: start}, nil
	}
	switch c := l.text[start]; {
	case isWordStart(c):
		return l.word()
	case isDigit(c):
		return l.number()
	case c == '"' || c == '\'':
		return l.string(c)
	case c == '`':
		return l.quoted()
	}
	return l.operator()
}

// word scans a bare word.
func (l *lexer) word() (token, *SyntaxError) {
	start := l.pos
	for l.pos < len(l.text) && isWordPart(l.text[l.pos]) {
		l.pos++
	}
	if r, _ := utf8.DecodeRuneInString(l.text[l.pos:]); r >= utf8.RuneSelf && unicode.IsLetter(r) {
		return token{}, l.foreign(start)
	}
	return token{tokWord, l.text[start:l.pos], start, l.pos}, nil
}

// operator scans an operator or a punctuation mark, the last possibility.
func (l *lexer) operator() (token, *SyntaxError) {
	start, rest := l.pos, l.text[l.pos:]
	for _, op := range [...]string{"==", "!=", "<>", "<=", ">=", "||"} {
		if strings.HasPrefix(rest, op) {
			l.pos += len(op)
			return token{tokOp, op, start, l.pos}, nil
		}
	}
	if strings.IndexByte("()[]{},.;:=<>-+*/%", rest[0]) >= 0 {
		l.pos++
		return token{tokOp, rest[:1], start, l.pos}, nil
	}
	r, size := utf8.DecodeRuneInString(rest)
	switch {
	case r == utf8.RuneError && size == 1:
		return token{}, l.fail(start, "byte %#x is not UTF-8", rest[0])
	case unicode.IsLetter(r):
		return token{}, l.foreign(start)
	case r == '$' || r == '?':
		return token{}, l.fail(start, "unexpected character %q: a parameter is not supported, an index must depend on the "+
			"document alone", r)
	case r == '&':
		return token{}, l.fail(start, "unexpected character '&'; write AND")
	}
	return token{}, l.fail(start, "unexpected character %q", r)
}

// foreign returns the error for a bare word with letters other than A to Z.
func (l *lexer) foreign(start int) *SyntaxError {
	word := strings.IndexFunc(l.text[start:], func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && r != '_'
	})
	if word < 0 {
		word = len(l.text) - start
	}
	return l.fail(start, "a name with letters other than A to Z must be written in backticks: `%s`",
		l.text[start:start+min(word, maxShown)])
}

func isWordStart(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' || c == '_' }
func isWordPart(c byte) bool  { return isWordStart(c) || c >= '0' && c <= '9' }
func isDigit(c byte) bool     { return c >= '0' && c <= '9' }

// accept consumes one of these characters, if it is next.
func (l *lexer) accept(one string) bool {
	if l.pos == len(l.text) || strings.IndexByte(one, l.text[l.pos]) < 0 {
		return false
	}
	l.pos++
	return true
}

// digits consumes digits and returns their number.
func (l *lexer) digits() (n int) {
	for ; l.pos < len(l.text) && isDigit(l.text[l.pos]); n++ {
		l.pos++
	}
	return n
}

// number scans a number in JSON's syntax, without sign.
func (l *lexer) number() (token, *SyntaxError) {
	start := l.pos
	if l.digits() > 1 && l.text[start] == '0' {
		return token{}, l.fail(start, "a number must not begin with an unnecessary 0")
	}
	if l.accept(".") && l.digits() == 0 {
		return token{}, l.fail(l.pos, "expected digits after the decimal point")
	}
	if l.accept("eE") {
		l.accept("+-")
		if l.digits() == 0 {
			return token{}, l.fail(l.pos, "expected digits of the exponent")
		}
	}
	if l.pos < len(l.text) && isWordPart(l.text[l.pos]) {
		return token{}, l.fail(l.pos, "unexpected character %q in a number", l.text[l.pos])
	}
	return token{tokNumber, l.text[start:l.pos], start, l.pos}, nil
}

// string scans a string in either kind of quotes. The quote may be doubled within it; escapes are those of JSON, and
// \' for an apostrophe.
func (l *lexer) string(quote byte) (token, *SyntaxError) {
	start := l.pos
	var body []byte // as the body of a JSON string
	for i := start + 1; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case c == quote && i+1 < len(l.text) && l.text[i+1] == quote:
			i++
			body = appendStringByte(body, quote)
		case c == quote:
			l.pos = i + 1
			if !utf8.Valid(body) {
				return token{}, l.fail(start, "this string is not UTF-8")
			}
			value, err := collate.AppendUnquoted(nil, body)
			if err != nil {
				return token{}, l.fail(start, "this string has an invalid escape; known: \\\" \\' \\\\ \\/ \\b \\f \\n \\r "+
					"\\t \\uXXXX")
			}
			return token{tokString, string(value), start, l.pos}, nil
		case c == '\\' && i+1 < len(l.text) && l.text[i+1] == '\'':
			i++
			body = append(body, '\'')
		case c == '\\' && i+1 < len(l.text):
			i++
			body = append(body, c, l.text[i])
		case c < 0x20 && c != '\t':
			return token{}, l.fail(i, "a control character in a string; write it as an escape")
		default:
			body = appendStringByte(body, c)
		}
	}
	return token{}, l.fail(start, "this string is not closed: expected %c", quote)
}

func appendStringByte(body []byte, c byte) []byte {
	switch c {
	case '"':
		return append(body, '\\', '"')
	case '\t':
		return append(body, '\\', 't')
	}
	return append(body, c)
}

// quoted scans an identifier in backticks; a backtick within it is doubled.
func (l *lexer) quoted() (token, *SyntaxError) {
	start := l.pos
	var name []byte
	for i := start + 1; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case c == '`' && i+1 < len(l.text) && l.text[i+1] == '`':
			i++
			name = append(name, c)
		case c == '`':
			l.pos = i + 1
			if len(name) == 0 {
				return token{}, l.fail(start, "an empty name")
			}
			if !utf8.Valid(name) {
				return token{}, l.fail(start, "this name is not UTF-8")
			}
			if rest := l.text[l.pos:]; rest != "" && rest[0] == 'i' && (len(rest) == 1 || !isWordPart(rest[1])) {
				return token{}, errorAt(l.text, l.pos, true, "a case-insensitive name is not supported, because a document "+
					"may have several such members: write the name as in the document, without i")
			}
			return token{tokQuoted, string(name), start, l.pos}, nil
		case c == '\n':
			return token{}, l.fail(start, "this name does not end on its line: expected a backtick")
		default:
			name = append(name, c)
		}
	}
	return token{}, l.fail(start, "this name is not closed: expected a backtick")
}

// reserved contains the words that need backticks as identifiers: keywords, and words kept for future ones.
var reserved = [...]string{
	"ALL", "AND", "ANY", "ARRAY", "ASC", "BETWEEN", "CASE", "DESC", "DISTINCT", "ELSE", "END", "ESCAPE", "EVERY", "EXISTS",
	"FALSE",
	"FOR", "IF", "IN", "INCLUDE", "IS", "LIKE", "MISSING", "NOT", "NULL", "ON", "OR", "PARTITION", "SATISFIES", "SELECT",
	"SELF", "THEN", "TRUE",
	"USING", "WHEN", "WHERE", "WITH", "WITHIN",
}

func isReserved(word string) bool {
	for _, r := range reserved {
		if len(r) == len(word) && strings.EqualFold(r, word) {
			return true
		}
	}
	return false
}
