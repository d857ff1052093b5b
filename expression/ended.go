package expression

import "strings"

// Ended reports whether the last statement of a text, which comes line by line, has come to its semicolon. What cannot
// be read has ended, so that whoever types it is told at once, unless it is a comment that goes on.
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
