package expression

import "strings"

// Ended reports whether the last statement of a text that is entered line by line has reached its semicolon. A text
// that cannot be tokenized has ended, so that the user gets the error at once, unless it ends in an open comment.
func Ended(text string) bool {
	l, last := lexer{text: text}, token{}
	for {
		tok, err := l.next()
		switch {
		case err != nil:
			return !strings.HasPrefix(l.text[l.pos:], "/*")
		case tok.kind == tokEnd:
			return last.kind == tokOp && last.value == ";"
		}
		last = tok
	}
}
