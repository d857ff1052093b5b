package expression

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

var (
	// ErrSyntax matches (errors.Is) every *SyntaxError.
	ErrSyntax = errors.New("syntax error")
	// ErrUnsupported matches a *SyntaxError about something that N1QL has, but this version does not support.
	ErrUnsupported = errors.New("not supported")
	// ErrDefinition is wrapped if a definition cannot be compiled or normalized for a reason other than its syntax.
	ErrDefinition = errors.New("bad index definition")
)

// SyntaxError is an error in a text, with its position.
type SyntaxError struct {
	Line, Column int    // from 1; columns are characters
	Message      string // what was found and what was expected
	Text         string // the line that contains it
	Unsupported  bool   // not wrong, but not supported
}

// Error returns the message and the line, with a caret below the position.
func (e *SyntaxError) Error() string {
	shown, indent := e.window()
	return fmt.Sprintf("line %d, column %d: %s\n  %s\n  %s^", e.Line, e.Column, e.Message, shown, indent)
}

// Is makes the error match the sentinels.
func (e *SyntaxError) Is(target error) bool {
	return target == ErrSyntax || target == ErrUnsupported && e.Unsupported
}

const (
	windowBefore = 60 // characters of a long line shown before the position
	windowAfter  = 40 // and after it
)

// window returns the part of a long line around the position, and the indentation of the caret below it.
func (e *SyntaxError) window() (shown, indent string) {
	line := []rune(e.Text)
	at := min(e.Column-1, len(line))
	before, after := line[:at], line[at:]
	if len(before) > windowBefore {
		before = append([]rune("…"), before[len(before)-windowBefore+1:]...)
	}
	if len(after) > windowAfter {
		after = append(append([]rune(nil), after[:windowAfter-1]...), '…')
	}
	blank := func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}
	return string(before) + string(after), strings.Map(blank, string(before))
}

// errorAt returns the error for byte offset pos of text.
func errorAt(text string, pos int, unsupported bool, format string, args ...any) *SyntaxError {
	pos = min(pos, len(text))
	start := strings.LastIndexByte(text[:pos], '\n') + 1
	line := text[start:]
	if i := strings.IndexByte(line, '\n'); i >= 0 {
		line = line[:i]
	}
	return &SyntaxError{
		Line:        strings.Count(text[:start], "\n") + 1,
		Column:      utf8.RuneCountInString(text[start:pos]) + 1,
		Message:     strings.ToValidUTF8(fmt.Sprintf(format, args...), "…"), // a clipped text may end within a character
		Text:        strings.ToValidUTF8(strings.TrimSuffix(line, "\r"), "\ufffd"),
		Unsupported: unsupported,
	}
}
